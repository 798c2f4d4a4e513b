"""Rows of docs/operations.md that replace a part of the stack while requests run. Only `--disturb` runs them.

Each leaves the stack as it was: ECS starts a task for each one that ended, and an alias returns to its version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from headgate.doctor.deployed.ecs_services import FRONT, WORKERS, place_of, rollouts_under_way, services_of, tasks_of
from headgate.doctor.deployed.stack import Deployed, Traffic
from headgate.doctor.deployed.streams import stream_during
from headgate.doctor.finding import Finding, failed, ok, skipped

SETTLED_S, POLL_S = 1_800.0, 5.0
"""For how long a service may take to have its tasks again, and how often it is looked at."""
RESULT_S = 120.0
TOO_FEW = "the model has fewer than two workers: name another one with --model, or raise count.min"
LIVE = "live"
EVENTS = 5
TOKENS = 16


def stream_survives_a_deployment(deployed: Deployed, title: str, traffic: Traffic) -> Finding:
    """Replace all tasks of the front while answers are streamed."""
    fronts = deployed.stack.services(FRONT)
    if not fronts:
        return skipped(title, "the front is a function, which no deployment stops")
    ecs, (_, name) = deployed.client("ecs"), place_of(fronts[0])
    return _check_streams(title, traffic, partial(_deploy, ecs, fronts[0]), f"the tasks of {name} were replaced")


def worker_drains(deployed: Deployed, title: str, traffic: Traffic) -> Finding:
    """Stop one worker, as a scale-in does, while answers are streamed and another worker serves its model."""
    ecs = deployed.client("ecs")
    for arn in deployed.stack.services(WORKERS):
        tasks = [task["taskArn"] for task in tasks_of(ecs, arn)]
        if len(tasks) > 1 and _serves(deployed, arn, traffic):
            return _check_streams(title, traffic, partial(_stop, ecs, arn, tasks[0]), f"{tasks[0]} was stopped")
    return skipped(title, TOO_FEW)


def workers_are_replaced_without_a_gap(deployed: Deployed, title: str, traffic: Traffic) -> Finding:
    """Replace all workers of the model while answers are streamed."""
    ecs = deployed.client("ecs")
    for arn in deployed.stack.services(WORKERS):
        if _serves(deployed, arn, traffic) and len(tasks_of(ecs, arn)) > 1:
            _, name = place_of(arn)
            return _check_streams(title, traffic, partial(_deploy, ecs, arn), f"the workers of {name} were replaced")
    return skipped(title, TOO_FEW)


def version_is_taken_back(deployed: Deployed, title: str) -> Finding:
    """Check that tenants invoke an alias. With traffic, point it to the version before and back, and fetch results."""
    invoke, result = deployed.stack.function("-invoke"), deployed.stack.function("-result")
    if invoke is None or result is None:
        return failed(title, "the stack has no function for tenants", "deploy again with this version")
    client = deployed.client("lambda")
    current = client.get_alias(FunctionName=invoke, Name=LIVE)["FunctionVersion"]
    if (traffic := deployed.traffic) is None:
        return ok(title, f"{invoke}:{LIVE} is version {current}; `--disturb` points it to the version before, and back")
    before = _version_before(client, invoke, current)
    if before is None:
        return skipped(title, f"{invoke} has one version: deploy a change first")
    names = [f"doctor-{traffic.run}-{number}" for number in range(2 * EVENTS)]
    _send(client, invoke, traffic, names[:EVENTS])
    client.update_alias(FunctionName=invoke, Name=LIVE, FunctionVersion=before)
    try:
        _send(client, invoke, traffic, names[EVENTS:])
        lost = _without_result(client, result, traffic, names)
    finally:
        client.update_alias(FunctionName=invoke, Name=LIVE, FunctionVersion=current)
    seen = f"{invoke}:{LIVE} went from version {current} to {before} and back; {len(names) - len(lost)} of {len(names)}"
    if lost:
        return failed(title, f"{seen} calls have a result, not {lost[0]}", "look at the log of both functions")
    return ok(title, f"{seen} calls have a result")


def _check_streams(title: str, traffic: Traffic, change: Callable[[], None], what: str) -> Finding:
    try:
        seen = stream_during(change, traffic)
    except (ConnectionError, TimeoutError) as error:
        return failed(title, str(error), "look at the service's events in ECS")
    count = f"{what} in {seen.seconds:.0f} s; {seen.whole} streams ended whole"
    if seen.broken:
        return failed(title, f"{count}, and {len(seen.broken)} did not: {seen.broken[0]}", "look at the fronts' logs")
    return ok(title, count)


def _serves(deployed: Deployed, service_arn: str, traffic: Traffic) -> bool:
    """Return whether the workers of the service serve the model of the traffic."""
    _, name = place_of(service_arn)
    pools = {f"{deployed.stack.name}-{pool}{WORKERS}": each for pool, each in deployed.deployment.pools.items()}
    return name in pools and pools[name].model_name == traffic.model


def _deploy(ecs: Any, service_arn: str) -> None:
    """Replace all tasks of the service, and return when it has new ones. Raises TimeoutError."""
    cluster, name = place_of(service_arn)
    ecs.update_service(cluster=cluster, service=name, forceNewDeployment=True)
    _until_settled(ecs, service_arn)


def _stop(ecs: Any, service_arn: str, task_arn: str) -> None:
    """Stop the task, and return when it has ended and the service has all its tasks again. Raises TimeoutError."""
    cluster, _ = place_of(service_arn)
    ecs.stop_task(cluster=cluster, task=task_arn, reason="headgate doctor deployed --disturb")
    _until(lambda: _has_stopped(ecs, cluster, task_arn), f"{task_arn} did not stop")
    _until_settled(ecs, service_arn)


def _has_stopped(ecs: Any, cluster: str, task_arn: str) -> bool:
    found = ecs.describe_tasks(cluster=cluster, tasks=[task_arn])["tasks"]
    return all(task["lastStatus"] == "STOPPED" for task in found)


def _until_settled(ecs: Any, service_arn: str) -> None:
    """Return when the service has its tasks and one deployment. Raises TimeoutError."""

    def is_settled() -> bool:
        (service,) = services_of(ecs, service_arn)
        has_all = service["runningCount"] >= service["desiredCount"] and len(service["deployments"]) == 1
        return has_all and not rollouts_under_way(service)

    _until(is_settled, f"{service_arn} has not all its tasks")


def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + SETTLED_S
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"{otherwise} after {SETTLED_S / 60:.0f} minutes")
        time.sleep(POLL_S)


def _version_before(client: Any, function: str, current: str) -> str | None:
    """Return the newest version before the current one; None without one."""
    pages = client.get_paginator("list_versions_by_function").paginate(FunctionName=function)
    numbers = [int(each["Version"]) for page in pages for each in page["Versions"] if each["Version"].isdigit()]
    return max((str(number) for number in numbers if number < int(current)), key=int, default=None)


def _send(client: Any, function: str, traffic: Traffic, names: Iterable[str]) -> None:
    """Send an Event invocation with each of these ids."""
    for name in names:
        request = {"model": traffic.model, "prompt": "hello", "max_tokens": TOKENS}
        body = json.dumps({"api_key": traffic.key, "idempotency_key": name, **request})
        client.invoke(FunctionName=function, Qualifier=LIVE, InvocationType="Event", Payload=body.encode())


def _without_result(client: Any, function: str, traffic: Traffic, names: Iterable[str]) -> list[str]:
    """Wait for the answers of Event invocations. Return the ids of those that do not come in time."""
    missing, until = list(names), time.monotonic() + RESULT_S
    while True:
        missing = [name for name in missing if not _is_done(client, function, traffic, name)]
        if not missing or time.monotonic() > until:
            return missing
        time.sleep(POLL_S)


def _is_done(client: Any, function: str, traffic: Traffic, name: str) -> bool:
    asked = json.dumps({"api_key": traffic.key, "id": name}).encode()
    reply = client.invoke(FunctionName=function, Qualifier=LIVE, Payload=asked)
    return bool(json.loads(reply["Payload"].read()).get("status") == "done")
