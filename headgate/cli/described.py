"""Options of `headgate local --file`: the pools of headgate.yaml, as processes of this machine.

The weights of a pool are in S3, so its workers have the modelled engine here. Before a server that runs already, a
worker forwards to it. Instances, network and domain have no meaning on one machine and are not used, nor are the
settings of vLLM's queue (`worker`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.model.errors import ConfigurationError
from headgate.machine.options import WORKER_BATCH_MAX, WORKER_SLOTS_MAX, WORKERS_MAX, WorkerGroup

if TYPE_CHECKING:
    from headgate.deployment.model import Deployment
    from headgate.deployment.pool import ForeignServer, Pool

IN_THE_FILE = ("workers", "slots", "model", "fleet", "url", "context_tokens")
"""Parameters of `headgate local` that the file replaces."""
ENGINE = "modelled"


def described_values(file: Path | None, engine: str, is_given: Callable[[str], bool]) -> dict[str, Any]:
    """Return the options that headgate.yaml decides; none without a file.

    `is_given`: whether the command line has a parameter. Raises ConfigurationError.
    """
    if file is None:
        return {}
    from headgate.deployment.loading import load

    for parameter in filter(is_given, IN_THE_FILE):
        option = "--" + parameter.replace("_", "-")
        raise ConfigurationError(f"--file has the workers and their model: leave out {option}")
    if is_given("engine") and engine != ENGINE:
        raise ConfigurationError(f"--file has models in S3, which no engine loads here: use --engine {ENGINE}")
    return {"file": file, **values_of(load(file), file)}


def values_of(deployment: Deployment, file: Path) -> dict[str, Any]:
    """Return the options of a deployment. Raises ConfigurationError if it has more parts than one machine takes."""
    parts = sum(len(pool.servers) or 1 for pool in deployment.pools.values())
    if parts > WORKERS_MAX:
        raise ConfigurationError(
            f"{file} needs {parts} workers for its pools and servers, and one machine takes {WORKERS_MAX}"
        )
    most = WORKERS_MAX // parts
    groups = tuple(WorkerGroup(name, each) for name, pool in deployment.pools.items() for each in _groups(pool, most))
    variables = deployment.environment()
    settings = {name: deployment.pool_settings(name) for name in deployment.pools}
    return {
        "groups": groups,
        "batches": any(each.get("slo_classes") for each in settings.values()),
        "slo_classes": variables.pop("HEADGATE_SLO_CLASSES", ""),
        "variables": {**variables, "HEADGATE_POOLS": json.dumps(settings)},
    }


def _groups(pool: Pool, workers_max: int) -> list[dict[str, Any]]:
    return [_forwarding(server) for server in pool.servers] or [_modelled_workers(pool, workers_max)]


def _modelled_workers(pool: Pool, workers_max: int) -> dict[str, Any]:
    return {
        "engine": ENGINE,
        "model": pool.model_name or None,
        "workers": min(workers_max, max(1, pool.count.min)),
        "slots": min(WORKER_SLOTS_MAX, pool.slots),
        "batch": min(WORKER_BATCH_MAX, pool.batch),
    }


def _forwarding(server: ForeignServer) -> dict[str, Any]:
    """Return the options of a worker before a server that runs already."""
    return {
        "engine": "openai",
        "url": server.url,
        "model": server.model,
        "context_tokens": server.context_tokens,
        "workers": 1,
        "slots": min(WORKER_SLOTS_MAX, server.slots),
        "batch": min(WORKER_BATCH_MAX, server.batch),
    }
