"""The id of this worker's task in ECS, which is the worker's name there: so the sweep can tell ECS which tasks to keep
(dispatcher/ecs.py), and an operator finds a worker's task and log stream by its name.

Source: ECS's developer guide, "task metadata endpoint version 4".
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Mapping

METADATA = "ECS_CONTAINER_METADATA_URI_V4"
"""ECS sets this variable in each container, to an address that only the container reaches."""
_ANSWER_S = 2.0
TRIES = 3

logger = logging.getLogger("headgate.worker")


def task_id(environment: Mapping[str, str]) -> str:
    """Return the task's id; empty outside ECS, or if ECS does not tell it. Blocks for at most TRIES x _ANSWER_S."""
    address = environment.get(METADATA)
    if not address:
        return ""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this address
    problem = ""
    for _ in range(TRIES):
        try:
            with direct.open(f"{address}/task", timeout=_ANSWER_S) as answer:
                return str(json.load(answer)["TaskARN"]).rpartition("/")[2]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = type(error).__name__
    logger.error("the task's id cannot be read, so ECS may stop this worker at any scale-in: %s", problem)
    return ""
