"""Steps that the tests of the operations share: submit a request to a Gate (memory_gate.py), and follow it."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatcher.model.answers.collected import Collected
from dispatcher.model.commands import Offer, Waiting
from dispatcher.model.errors import AnsweredError
from dispatcher.model.records.invocation import StoredAnswer
from dispatcher.model.requests import Endpoint, Request
from dispatcher.operations.calls.answer import result_of
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


async def take_slots(gate: Gate, max_tokens: int = 3, tenant: str = "b", **more: Any) -> asyncio.Future[list[Any]]:
    """Let two calls run, which take both slots of the gate. Return what is done when they have ended."""
    running = asyncio.gather(*(begun(gate, tenant, max_tokens=max_tokens, **more) for _ in range(2)))
    await asyncio.sleep(0.01)
    return running


async def answered_again(gate: Gate, tenant: str, key: str, wait_s: float | None = None, **more: Any) -> StoredAnswer:
    """Repeat a call whose key is known, and return its answer."""
    known = await submitted(gate, tenant, key, **more)
    assert isinstance(known, Known)
    try:
        answer = await result_of(more.get("context", gate.context), known, *([] if wait_s is None else [wait_s]))
    finally:
        known.leave()
    assert answer is not None
    return answer


def begun(gate: Gate, tenant: str, key: str = "", **more: Any) -> asyncio.Task[Collected | AnsweredError]:
    """Do the same in a task beside the test."""
    return asyncio.ensure_future(followed(gate, tenant, key, **more))
