"""Deletes an Auto Scaling group with all its instances, those too that ECS protects from scale-in.

Source: Amazon EC2 Auto Scaling's API reference, "DeleteAutoScalingGroup" (ForceDelete).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from botocore.exceptions import ClientError

POLL_S = 5.0
_RESERVE_S = 30.0
"""The part of the caller's time that is reserved for the caller's answer."""
_REPEATED = {"ResourceContention", "ScalingActivityInProgress", "Throttling", "ServiceUnavailable", "InternalFailure"}
"""Errors of a group that is busy, or of a busy service; the next try may succeed."""
log = logging.getLogger(__name__)


class AutoScaling(Protocol):
    """What is used of EC2 Auto Scaling's client."""

    def describe_auto_scaling_groups(self, **parameters: Any) -> Mapping[str, Any]: ...

    def delete_auto_scaling_group(self, **parameters: Any) -> Any: ...


def make_auto_scaling() -> AutoScaling:
    import boto3  # here, so that only a process that uses AWS loads it

    client: AutoScaling = boto3.client("autoscaling")
    return client


def remove_group(
    group: str, scaling: AutoScaling, remaining_s: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Delete the group with force, and return when it is gone. `remaining_s`: the time that the caller has left. Raises
    TimeoutError if the group does not end within it."""
    while found := scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]:
        if remaining_s() < _RESERVE_S + POLL_S:
            left = len(found[0].get("Instances", ()))
            raise TimeoutError(
                f"the Auto Scaling group {group} still has {left} instances, which are ending: delete the stack "
                "again in some minutes"
            )
        if not found[0].get("Status"):  # set while a deletion is in progress
            _delete(group, scaling)
        sleep(POLL_S)


def _delete(group: str, scaling: AutoScaling) -> None:
    try:
        scaling.delete_auto_scaling_group(AutoScalingGroupName=group, ForceDelete=True)
    except ClientError as error:
        if error.response["Error"]["Code"] not in _REPEATED and not _is_gone(error):
            raise
        log.warning("the deletion of %s is tried again: %s", group, error)


def _is_gone(error: ClientError) -> bool:
    found = error.response["Error"]
    return found["Code"] == "ValidationError" and "not found" in found["Message"]
