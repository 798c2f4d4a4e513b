"""Steps that the tests of the operations share: submit a request to a Gate (memory_gate.py), and follow it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dispatcher.model.errors import AnsweredError
from dispatcher.model.old_invocation import Result
from dispatcher.model.old_outcomes import Dispatched, Queued, Submitted
from dispatcher.model.requests import Request
from dispatcher.old_operations.answer import answer
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.execute import Collected
from dispatcher.old_operations.submit import Submission, submit
from tests.support.gate.memory_gate import MODEL, Gate


def asked(prompt: str = "hello", max_tokens: int | None = 3, model: str = MODEL) -> Request:
    return Request(model, False, prompt, None, max_tokens, 1.0, None, ())


def kept(collected: Collected) -> Result:
    return Result(200, json.dumps({"text": collected.text}))


async def submission(gate: Gate, tenant: str, invocation_id: str, **more: Any) -> Submission:
    """Return a submission with the tenant in the configuration that the process of `context` knows."""
    context: Context = more.pop("context", gate.context)
    fields: dict[str, Any] = {"deadline_s": 300.0, "keep_body": False, **more}
    request = fields.pop("request", None) or asked(max_tokens=fields.pop("max_tokens", 3))
    return Submission(await context.directory.tenant_of(gate.keys[tenant]), request, invocation_id, **fields)


async def submitted(gate: Gate, tenant: str, invocation_id: str, **more: Any) -> Submitted:
    context = more.get("context", gate.context)
    return await submit(context, await submission(gate, tenant, invocation_id, **more))


async def queued(gate: Gate, tenant: str, invocation_id: str, **more: Any) -> Queued:
    accepted = await submitted(gate, tenant, invocation_id, **more)
    assert isinstance(accepted, Queued)
    return accepted


async def dispatched(gate: Gate, tenant: str, invocation_id: str, **more: Any) -> Dispatched:
    accepted = await submitted(gate, tenant, invocation_id, **more)
    assert isinstance(accepted, Dispatched)
    return accepted


async def followed(gate: Gate, tenant: str, invocation_id: str, **more: Any) -> Collected | AnsweredError:
    """Submit and follow to the end. An error is returned, not raised."""
    context = more.get("context", gate.context)
    asking = await submission(gate, tenant, invocation_id, **more)
    collected = Collected()
    try:
        accepted = await submit(context, asking)
        assert isinstance(accepted, Dispatched | Queued)
        async for event in answer(context, asking, accepted, kept if asking.keep_answer else None):
            collected.note(event)
    except AnsweredError as error:
        return error
    return collected


def begun(gate: Gate, tenant: str, invocation_id: str, **more: Any) -> asyncio.Task[Collected | AnsweredError]:
    """Do the same in a task beside the test."""
    return asyncio.ensure_future(followed(gate, tenant, invocation_id, **more))
