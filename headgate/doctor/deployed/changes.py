"""Rows of docs/operations.md that replace a part of the stack while requests run. Only `--disturb` runs them.

Each leaves the stack as it was: ECS starts a task for each one that ended, and an alias returns to its version. Streams
run meanwhile, and each must end whole: with its last token and no error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import openai

from dispatcher.model.errors import ConfigurationError
from headgate.doctor.deployed.stack import (
    FRONT,
    WORKERS,
    Deployed,
    Traffic,
    place_of,
    rollouts_under_way,
    services_of,
    tasks_of,
)
from headgate.doctor.finding import Finding, failed, ok, skipped

_STREAMS = 4
"""The number of streams at once. When a stream ends, the next stream begins."""
_STREAM_TOKENS = 512
_STREAM_S = 900.0
_OWN_CONNECTION = {"Connection": "close"}
"""The header that gives each stream its own connection. A front may close a kept connection at the moment at which the
next request is sent."""


@dataclass(slots=True)
class Streamed:
    """What was seen. `whole`: the streams that ended as they should. `broken`: what ended the others."""

    whole: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


def traffic_to(base_url: str, key: str, model: str | None, run: str) -> Traffic:
    """Return the traffic to a model, by default the first one that the key may use. Raises ConfigurationError."""
    if not key:
        raise ConfigurationError("--disturb sends requests: give a tenant's key with --key, or HEADGATE_API_KEY")
    try:
        models = [each.id for each in openai.OpenAI(base_url=base_url, api_key=key, max_retries=0).models.list()]
    except openai.APIError as error:
        raise ConfigurationError(f"{base_url} answers no request with this key: {error.message}") from None
    if not models or (model is not None and model not in models):
        raise ConfigurationError(f"the key may not use the model {model or 'of any pool'}; it may use {models}")
    return Traffic(base_url, key, model or models[0], run)


def _stream_during(change: Callable[[], None], traffic: Traffic) -> Streamed:
    """Stream answers until `change`, which may block, has returned and the last ones have ended.

    `change` begins when the first stream has a token. Raises what `change` raises, and ConnectionError if no stream
    begins.
    """
    return asyncio.run(_during(change, traffic))


async def _during(change: Callable[[], None], traffic: Traffic) -> Streamed:
    seen, began, over = Streamed(), asyncio.Event(), asyncio.Event()
    async with openai.AsyncOpenAI(
        base_url=traffic.base_url, api_key=traffic.key, max_retries=0, default_headers=_OWN_CONNECTION
    ) as client:
        streams = [asyncio.create_task(_repeat(client, traffic.model, seen, began, over)) for _ in range(_STREAMS)]
        first, started = asyncio.create_task(began.wait()), time.monotonic()
        try:
            await asyncio.wait({first, *streams}, return_when=asyncio.FIRST_COMPLETED)
            if not began.is_set():
                raise ConnectionError(seen.broken[0])
            await asyncio.to_thread(change)
        finally:
            over.set()
            first.cancel()
            await asyncio.gather(*streams)
        seen.seconds = time.monotonic() - started
    return seen


async def _repeat(
    client: openai.AsyncOpenAI, model: str, seen: Streamed, began: asyncio.Event, over: asyncio.Event
) -> None:
    """Stream one answer after another until `over`, or until one is broken."""
    while not over.is_set():
        try:
            is_whole = await _stream(client, model, began)
        except openai.APIError as error:
            seen.broken.append(f"{type(error).__name__}: {error.message}"[:200])
            return
        if not is_whole:
            seen.broken.append("a stream ended without its last chunk")
            return
        seen.whole += 1


async def _stream(client: openai.AsyncOpenAI, model: str, began: asyncio.Event) -> bool:
    """Return whether the stream had a reason for its end."""
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell a long story."}],
        max_tokens=_STREAM_TOKENS, stream=True, timeout=_STREAM_S,
    )  # fmt: skip
    reasons = []
    async for chunk in answer:
        began.set()
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    return bool(reasons)


_SETTLED_S, POLL_S = 1_800.0, 5.0
"""For how long a service may take to have its tasks again, and how often it is looked at."""
RESULT_S = 120.0
_TOO_FEW = "the model has fewer than two workers: name another one with --model, or raise count.min"
_LIVE = "live"
_EVENTS = 5
_TOKENS = 16


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
    return skipped(title, _TOO_FEW)


def workers_are_replaced_without_a_gap(deployed: Deployed, title: str, traffic: Traffic) -> Finding:
    """Replace all workers of the model while answers are streamed."""
    ecs = deployed.client("ecs")
    for arn in deployed.stack.services(WORKERS):
        if _serves(deployed, arn, traffic) and len(tasks_of(ecs, arn)) > 1:
            _, name = place_of(arn)
            return _check_streams(title, traffic, partial(_deploy, ecs, arn), f"the workers of {name} were replaced")
    return skipped(title, _TOO_FEW)


def version_is_taken_back(deployed: Deployed, title: str) -> Finding:
    """Check that tenants invoke an alias. With traffic, point it to the version before and back, and fetch results."""
    invoke, result = deployed.stack.function("-invoke"), deployed.stack.function("-result")
    if invoke is None or result is None:
        return failed(title, "the stack has no function for tenants", "deploy again with this version")
    client = deployed.client("lambda")
    current = client.get_alias(FunctionName=invoke, Name=_LIVE)["FunctionVersion"]
    if (traffic := deployed.traffic) is None:
        return ok(
            title, f"{invoke}:{_LIVE} is version {current}; `--disturb` points it to the version before, and back"
        )
    before = _version_before(client, invoke, current)
    if before is None:
        return skipped(title, f"{invoke} has one version: deploy a change first")
    names = [f"doctor-{traffic.run}-{number}" for number in range(2 * _EVENTS)]
    _send(client, invoke, traffic, names[:_EVENTS])
    client.update_alias(FunctionName=invoke, Name=_LIVE, FunctionVersion=before)
    try:
        _send(client, invoke, traffic, names[_EVENTS:])
        lost = _without_result(client, result, traffic, names)
    finally:
        client.update_alias(FunctionName=invoke, Name=_LIVE, FunctionVersion=current)
    seen = (
        f"{invoke}:{_LIVE} went from version {current} to {before} and back; {len(names) - len(lost)} of {len(names)}"
    )
    if lost:
        return failed(title, f"{seen} calls have a result, not {lost[0]}", "look at the log of both functions")
    return ok(title, f"{seen} calls have a result")


def _check_streams(title: str, traffic: Traffic, change: Callable[[], None], what: str) -> Finding:
    try:
        seen = _stream_during(change, traffic)
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
    until = time.monotonic() + _SETTLED_S
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"{otherwise} after {_SETTLED_S / 60:.0f} minutes")
        time.sleep(POLL_S)


def _version_before(client: Any, function: str, current: str) -> str | None:
    """Return the newest version before the current one; None without one."""
    pages = client.get_paginator("list_versions_by_function").paginate(FunctionName=function)
    numbers = [int(each["Version"]) for page in pages for each in page["Versions"] if each["Version"].isdigit()]
    return max((str(number) for number in numbers if number < int(current)), key=int, default=None)


def _send(client: Any, function: str, traffic: Traffic, names: Iterable[str]) -> None:
    """Send an Event invocation with each of these ids."""
    for name in names:
        request = {"model": traffic.model, "prompt": "hello", "max_tokens": _TOKENS}
        body = json.dumps({"api_key": traffic.key, "idempotency_key": name, **request})
        client.invoke(FunctionName=function, Qualifier=_LIVE, InvocationType="Event", Payload=body.encode())


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
    reply = client.invoke(FunctionName=function, Qualifier=_LIVE, Payload=asked)
    return bool(json.loads(reply["Payload"].read()).get("status") == "done")
