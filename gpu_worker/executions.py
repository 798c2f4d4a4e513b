"""What a worker is executing right now: never more than its slots, each once, each to its deadline at most."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from dispatcher.ports import Clock
from gpu_worker.engines.base import Engine, EngineError, EngineEvent, Started, Token
from gpu_worker.wire import OrderBody, line

logger = logging.getLogger("headgate.worker")

ALIVE_EVERY_S = 2.0
"""A line while nothing else is to be said, so that silence means death."""


class SettleLost(Protocol):
    """Settles what a vanished gate will not: once, fenced by the attempt."""

    async def __call__(
        self, tenant: str, invocation_id: str, attempt: int, *, input_tokens: int, output_tokens: int
    ) -> object: ...


@dataclass(eq=False, slots=True)
class Execution:
    order: OrderBody
    input_tokens: int = 0
    output_tokens: int = 0
    over: bool = False
    """Its end was told to the gate, which settles it."""
    lease_lost: bool = False
    """Another attempt owns the invocation: nothing here may settle it."""

    @property
    def name(self) -> str:
        return self.order.execution

    def note(self, event: EngineEvent) -> None:
        if not isinstance(event, Token):
            self.input_tokens = event.input_tokens
        if not isinstance(event, Started):
            self.output_tokens = event.output_tokens

    def counts(self) -> dict[str, int]:
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}


class Refusal(Exception):
    """This worker does not take this order. `status` as HTTP has it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(eq=False)
class Executions:
    """`settle_lost` is called for what ended without its gate."""

    engine: Engine
    slots: int
    clock: Clock
    settle_lost: SettleLost
    accepting: bool = True
    """False while draining, and while the worker cannot reach the table to keep its leases."""
    _live: dict[str, Execution] = field(default_factory=dict)
    _winding_up: set[asyncio.Task[None]] = field(default_factory=set)

    def live(self) -> frozenset[str]:
        return frozenset(self._live)

    def claim(self, order: OrderBody) -> Execution:
        """Take the order on. Raises Refusal."""
        if order.model != self.engine.facts.model:
            raise Refusal(404, "model_not_found", "This worker serves another model.")
        if not self.accepting:
            raise Refusal(503, "draining", "This worker takes no more work.")
        if order.execution in self._live:
            raise Refusal(409, "running_already", "This execution is running already.")
        if len(self._live) >= self.slots:
            raise Refusal(503, "worker_full", "All slots of this worker are taken.")
        execution = Execution(order)
        self._live[execution.name] = execution
        return execution

    async def run(self, execution: Execution) -> AsyncGenerator[bytes, None]:
        """The execution's lines. Closed early, its gate is gone: the work is aborted and settled from here."""
        events = self.engine.generate(execution.order.engine_request(self._prompt(execution.order)))
        upcoming = asyncio.ensure_future(anext(events))
        try:
            while not execution.over:
                await asyncio.wait({upcoming}, timeout=self._patience_s(execution.order))
                if not upcoming.done():
                    if self.clock.now() >= execution.order.deadline_at:
                        await self.engine.abort(execution.name)
                    yield line("alive")
                    continue
                yield self._line(execution, upcoming)
                if not execution.over:
                    upcoming = asyncio.ensure_future(anext(events))
        finally:
            # A task of its own: this one may be cancelled again at every await.
            self._keep(asyncio.ensure_future(self._wind_up(execution, upcoming, events)))

    async def abort(self, name: str, *, lease_lost: bool = False) -> None:
        execution = self._live.get(name)
        if execution is not None:
            execution.lease_lost = execution.lease_lost or lease_lost
            await self.engine.abort(name)

    async def abort_all(self, *, lease_lost: bool = False) -> None:
        await asyncio.gather(*(self.abort(name, lease_lost=lease_lost) for name in list(self._live)))

    async def idle(self) -> None:
        """Until nothing runs any more and everything that ended without its gate is settled."""
        while self._live or self._winding_up:
            await asyncio.wait(self._winding_up) if self._winding_up else await self.clock.sleep(0.05)

    def _prompt(self, order: OrderBody) -> str:
        if order.prompt is not None:
            return order.prompt
        return self.engine.render_chat([message.model_dump() for message in order.messages or []])

    def _patience_s(self, order: OrderBody) -> float:
        """Until the next sign of life or the deadline; past it, a moment for the abort to come through."""
        remaining = order.deadline_at - self.clock.now()
        return min(ALIVE_EVERY_S, remaining if remaining > 0 else ALIVE_EVERY_S)

    def _line(self, execution: Execution, upcoming: asyncio.Future[EngineEvent]) -> bytes:
        """The next event as a line; the engine's refusal as one too. Notes the counts, and the end."""
        try:
            event = upcoming.result()
        except EngineError as error:
            execution.over = True
            status = 400 if error.code == "context_length_exceeded" else 500
            return line("refused", status=status, code=error.code, message=error.message)
        execution.note(event)
        if isinstance(event, Started):
            return line("started", input_tokens=event.input_tokens)
        if isinstance(event, Token):
            return line("token", text=event.text, output_tokens=event.output_tokens)
        execution.over = True
        return line("finished", reason=event.reason, **execution.counts())

    async def _wind_up(
        self, execution: Execution, upcoming: asyncio.Future[EngineEvent], events: AsyncGenerator[EngineEvent, None]
    ) -> None:
        """Free the slot; where the gate is gone, abort first, take the exact counts from the end, and settle."""
        lost = not execution.over
        if lost:
            await self.engine.abort(execution.name)
            await asyncio.wait({upcoming})
            if not upcoming.exception():
                execution.note(upcoming.result())
            async for event in events:
                execution.note(event)
        await events.aclose()
        self._live.pop(execution.name, None)
        if lost and not execution.lease_lost:
            order = execution.order
            await self.settle_lost(order.tenant, order.invocation, order.attempt, **execution.counts())

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._winding_up.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._winding_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an execution could not be wound up: %s", type(error).__name__)
