"""Steps that the tests of the operations share: submit a request to a Gate (memory_gate.py), and follow it."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatcher.model.answers import Collected
from dispatcher.model.commands import Offer, Waiting
from dispatcher.model.errors import AnsweredError
from dispatcher.model.requests import Endpoint, Request
from dispatcher.operations.calls.submit import Known, NewCall, submit
from dispatcher.operations.context import Context
from tests.support.gate.memory_gate import MODEL, Gate


def asked(prompt: str = "hello", max_tokens: int | None = 3, model: str = MODEL, *, stream: bool = False) -> Request:
    return Request(model, Endpoint.COMPLETION, {"prompt": prompt}, max_tokens, stream=stream)


async def submitted(gate: Gate, tenant: str, key: str = "", **more: Any) -> NewCall | Known:
    """Submit a request of the tenant, in the configuration that the process of `context` knows."""
    context: Context = more.pop("context", gate.context)
    fields: dict[str, Any] = {"deadline_s": 300.0, **more}
    wanted = {name: fields.pop(name) for name in ("max_tokens", "stream", "model") if name in fields}
    request = fields.pop("request", None) or asked(**wanted)
    return await submit(context, await context.directory.tenant_of(gate.keys[tenant]), request, key, **fields)


async def accepted(gate: Gate, tenant: str, key: str = "", **more: Any) -> NewCall:
    found = await submitted(gate, tenant, key, **more)
    assert isinstance(found, NewCall)
    return found


async def queued(gate: Gate, tenant: str, key: str = "", **more: Any) -> NewCall:
    found = await accepted(gate, tenant, key, **more)
    assert isinstance(found.outcome, Waiting)
    return found


async def dispatched(gate: Gate, tenant: str, key: str = "", **more: Any) -> NewCall:
    found = await accepted(gate, tenant, key, **more)
    assert isinstance(found.outcome, Offer)
    return found


async def read(found: NewCall) -> Collected:
    """Read an answer to its end: of a stream what its events say, else the whole."""
    collected = Collected()
    try:
        async for event in found.following.events():
            collected.note(event)
    finally:
        found.leave()
    return collected if found.call.request.stream else found.following.answer


async def followed(gate: Gate, tenant: str, key: str = "", **more: Any) -> Collected | AnsweredError:
    """Submit and follow to the end. An error is returned, not raised."""
    try:
        return await read(await accepted(gate, tenant, key, **more))
    except AnsweredError as error:
        return error


def begun(gate: Gate, tenant: str, key: str = "", **more: Any) -> asyncio.Task[Collected | AnsweredError]:
    """Do the same in a task beside the test."""
    return asyncio.ensure_future(followed(gate, tenant, key, **more))
