"""Steps that the tests of the operations share, on a Gate (memory_gate.py): submit a request and follow it; upload a
batch, run it, and read what came out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from dispatcher.model.answers import Collected
from dispatcher.model.batches import Batch
from dispatcher.model.commands import Offer, Waiting
from dispatcher.model.errors import AnsweredError
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.worker_protocol import WorkEvent
from dispatcher.operations.batches.create import create
from dispatcher.operations.batches.run import serve_batches
from dispatcher.operations.calls.answer import result_of
from dispatcher.operations.calls.followed import FollowedCall, Pause
from dispatcher.operations.calls.submit import Known, NewCall, submit
from dispatcher.operations.context import Context
from dispatcher.operations.files import upload
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.slo import SloClass, SloClasses
from dispatcher.shard.settings import ShardSettings
from tests.support.world.memory_gate import CHAT, MODEL, POOL, Gate, MemoryFiles, make_gate


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


async def events_of(following: FollowedCall) -> AsyncGenerator[WorkEvent, None]:
    while True:
        for event in await following.next_events():
            if isinstance(event, Pause):
                return
            yield event


async def read(found: NewCall) -> Collected:
    """Read an answer to its end: of a stream what its events say, else the whole."""
    collected = Collected()
    try:
        async for event in events_of(found.following):
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


RESPONSES = "/v1/responses"
CLASSES = SloClasses([SloClass("normal", 60.0), SloClass("night", 3600.0, is_deferred=True)])
LATEST_S = 48 * 3600.0
"""No test waits longer, in virtual time."""


async def batch_gate(slots: int = 2) -> Gate:
    """Return a gate with SLO classes and files, the tenants a and b, and one worker."""
    gate = await make_gate(slots, ShardSettings(slack=Slack()))
    gate.contexts.clear()
    batch_process(gate, MemoryFiles())
    return gate


def batch_process(gate: Gate, files: MemoryFiles | None = None, **settings: Any) -> Context:
    """Start a process over the same files."""
    context = gate.process(slo_classes=CLASSES, **settings)
    context.files = files or gate.context.files
    return context


def line(custom_id: str, max_tokens: int = 3, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": custom_id}], "max_tokens": max_tokens, **more}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def response_line(custom_id: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": custom_id, "max_output_tokens": 3, **more}
    return {"custom_id": custom_id, "method": "POST", "url": RESPONSES, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


async def started(gate: Gate, *lines: Any, tenant: str = "a", window: str = "24h", endpoint: str = CHAT) -> Batch:
    """Upload the lines and create their batch."""
    record = await upload(gate.context, tenant, "requests.jsonl", parts_of(jsonl(*lines)))
    found = await gate.store.get_tenant(tenant)
    assert found is not None
    body = {"input_file_id": record.id, "endpoint": endpoint, "completion_window": window}
    return await create(gate.context, found, body)


async def parts_of(content: bytes) -> AsyncIterator[bytes]:
    yield content


@asynccontextmanager
async def runner(gate: Gate, context: Context | None = None) -> AsyncIterator[asyncio.Task[None]]:
    """Run batches until the end of the block."""
    serving = asyncio.create_task(serve_batches(context or gate.context))
    try:
        yield serving
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def ended(gate: Gate, batch: Batch) -> Batch:
    """Wait until the batch has ended and is retired."""
    until, found = gate.clock.now() + LATEST_S, batch
    while gate.clock.now() < until:
        found = await gate.store.batch(batch.tenant, batch.id) or batch
        if not found.is_open and (batch.tenant, batch.id) not in await gate.store.open_batches(POOL):
            await gate.clock.sleep(0.1)
            return found
        await gate.clock.sleep(1.0)
    raise AssertionError(f"the batch is still {found.status}")


async def played(gate: Gate, *lines: Any, context: Context | None = None, **more: Any) -> Batch:
    """Start a batch, and run it to its end."""
    batch = await started(gate, *lines, **more)
    async with runner(gate, context):
        return await ended(gate, batch)


async def output(gate: Gate, batch: Batch) -> list[dict[str, Any]]:
    return await _content(gate, batch.tenant, batch.output_file_id)


async def errors(gate: Gate, batch: Batch) -> list[dict[str, Any]]:
    return await _content(gate, batch.tenant, batch.error_file_id)


async def _content(gate: Gate, tenant: str, file_id: str) -> list[dict[str, Any]]:
    if not file_id:
        return []
    record = await gate.store.file(tenant, file_id)
    assert record is not None
    assert gate.context.files is not None
    content = b"".join([part async for part in gate.context.files.read(record.blob)])
    assert len(content) == record.size_bytes
    return [json.loads(each) for each in content.splitlines()]
