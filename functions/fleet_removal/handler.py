"""headgate-remove-fleet: CloudFormation calls it just before it deletes the Auto Scaling group of a pool.

ECS protects each instance of the group from scale-in, so that only an instance without tasks ends, and the protection
stays when the capacity provider is deleted. CloudFormation deletes a group by making it empty, without force: protected
instances never end, the deletion fails after an hour, and the GPUs are billed. So this function deletes the group with
force before. By then the pool's service has ended, and its tasks with it (infra/fleet/capacity.py has the order).

It answers each event, whatever happens: without an answer CloudFormation waits until its own limit.

Source: CloudFormation's user guide, "Custom resource request types" and "response objects".
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.processes.group_removal import AutoScaling, make_auto_scaling, remove_group
from functions.observability import logger

_ANSWER_ATTEMPTS_MAX = 3
_REASON_CHARS_MAX = 500


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> None:
    answer(event, make_auto_scaling, lambda: context.get_remaining_time_in_millis() / 1000, time.sleep, send)


def answer(
    event: Mapping[str, Any],
    scaling: Callable[[], AutoScaling],
    remaining_s: Callable[[], float],
    sleep: Callable[[float], None],
    respond: Callable[[str, bytes], None],
) -> None:
    """Do what the event asks for, and answer CloudFormation. Only a deletion does something."""
    group = event["ResourceProperties"]["GroupName"]
    own = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    outcome = {**own, "PhysicalResourceId": event.get("PhysicalResourceId", group), "Status": "SUCCESS", "Reason": ""}
    try:
        if event["RequestType"] == "Delete":
            remove_group(group, scaling(), remaining_s, sleep)
        else:
            outcome["PhysicalResourceId"] = group  # another group than before: CloudFormation then deletes the former
    except Exception as error:  # CloudFormation gets every error as the reason
        logger.exception("the group was not deleted", extra={"group": group})
        outcome |= {"Status": "FAILED", "Reason": f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]}
    respond(event["ResponseURL"], json.dumps(outcome).encode())


def send(url: str, body: bytes) -> None:
    """Put the answer to the address that CloudFormation gave. Raises OSError after _ANSWER_ATTEMPTS_MAX attempts."""
    for attempt in range(1, _ANSWER_ATTEMPTS_MAX + 1):
        request = urllib.request.Request(url, data=body, method="PUT", headers={"Content-Type": ""})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - a signed address of CloudFormation's bucket
                return
        except OSError:
            if attempt == _ANSWER_ATTEMPTS_MAX:
                raise
