"""The engines of the conformance suite: how a test makes each, holds its thread, and reads its events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from gpu_worker.engines.interface import Engine, EngineEvent, Finished, Started, Token, WorkOrder, own_order
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from tests.support.hang_guard import HANG_S

needs_torch = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed (extra: transformers)"),
]

ENGINE_FIELDS = frozenset(each.name for each in fields(WorkOrder))

KINDS = ["modelled", pytest.param("transformers", marks=needs_torch)]


def recorded(name: str) -> tuple[QueuePolicy, list[tuple[str, str]]]:
    """A policy, and the calls that reach it, as (call, request id)."""
    policy, calls = make_policy(name), []

    def wrap(call: str) -> None:
        inner: Callable[..., object] = getattr(policy, call)

        def outer(subject: object, *others: object) -> object:
            calls.append((call, str(getattr(subject, "request_id", subject))))
            return inner(subject, *others)

        setattr(policy, call, outer)

    for call in ("enqueue", "admit", "undo_admit"):
        wrap(call)
    return policy, calls


@asynccontextmanager
async def engine_of(
    kind: str, policy: QueuePolicy, home: Path, *, batch: int = 2, kv: int = 2048
) -> AsyncIterator[Engine]:
    engine: Engine
    if kind == "modelled":
        from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine

        profile = replace(INSTANT, pool_tokens=kv, batch_max=batch)
        engine = ModelledEngine(policy, profile=profile, context_tokens=2048)
    else:
        from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

        shape = TransformersShape(batch=batch, kv_tokens=kv, step_tokens=64)
        engine = TransformersEngine.load(policy, model=None, home=home, shape=shape)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def request(request_id: str, tenant: str = "a", **changes: object) -> WorkOrder:
    body: dict[str, object] = {"prompt": "What is served next?", "temperature": 0.0}
    body |= {name: changes.pop(name) for name in [*changes] if name not in ENGINE_FIELDS}
    return own_order(request_id, tenant, body, **{"max_tokens": 8, **changes})  # type: ignore[arg-type]


async def events_of(engine: Engine, asked: WorkOrder) -> list[EngineEvent]:
    return [event async for event in engine.generate(asked)]


def end_of(events: list[EngineEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


async def text_of(engine: Engine, asked: WorkOrder) -> str:
    return "".join(event.text for event in await events_of(engine, asked) if isinstance(event, Token))


async def past_first_token(stream: AsyncGenerator[EngineEvent, None]) -> None:
    assert isinstance(await anext(stream), Started)
    assert isinstance(await anext(stream), Token)


async def finished(stream: AsyncGenerator[EngineEvent, None]) -> Finished:
    return end_of([event async for event in stream])


async def idle(engine: Engine) -> None:
    """Return once nothing is left in the engine; the test's own time limit is the bound."""
    while engine.stats().running or engine.stats().waiting or engine.stats().kv_use:
        await asyncio.sleep(0.005)  # a busy wait would take the interpreter from the engine's thread


def gather_text(engine: Engine, asked: list[WorkOrder]) -> asyncio.Future[list[str]]:
    return asyncio.gather(*(text_of(engine, one) for one in asked))


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class EngineHold:
    """Hold a transformers engine once `enough(tokens by request)` is true after a step; go on at `release` or the exit.

    Enter it before the requests, then await `held`.
    """

    def __init__(self, engine: Any, enough: Callable[[dict[str, int]], bool]) -> None:
        self._router = engine._router
        self._enough = enough
        self._loop = asyncio.get_running_loop()
        self._held = asyncio.Event()
        self._released = threading.Event()

    def __enter__(self) -> EngineHold:
        deliver = self._router.deliver_batch

        def deliver_and_hold(outputs: list[Any]) -> None:
            deliver(outputs)
            if not self._released.is_set() and self._enough(self._tokens()):
                self._loop.call_soon_threadsafe(self._held.set)
                self._released.wait(HANG_S)

        self._router.deliver_batch = deliver_and_hold
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
        del self._router.deliver_batch

    async def held(self) -> None:
        """Return once the engine is held."""
        await self._held.wait()

    async def entered(self, request_id: str) -> None:
        """Return once the engine has the request in its input queue."""
        while request_id not in self._router.live:
            await asyncio.sleep(0)

    def release(self) -> None:
        self._released.set()

    def _tokens(self) -> dict[str, int]:
        return {name: sequence.output_tokens for name, sequence in self._router.live.items()}
