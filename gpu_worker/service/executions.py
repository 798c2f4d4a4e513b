"""What a worker is executing right now: never more than its slots, each once, each to its deadline at most."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import InitVar, asdict, dataclass, field

from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from dispatcher.worker_wire import encode_event
from gpu_worker.engines.interface import Engine, EngineError, EngineEvent
from gpu_worker.service.engine_request import engine_request
from gpu_worker.service.settlement import SettleLost, settle_patiently
from gpu_worker.service.shedding_watch import Watch

logger = logging.getLogger("headgate.worker")

ALIVE = encode_event(Alive())
ALIVE_EVERY_S = 2.0
"""A line while nothing else is to be said, so that silence means death."""
REFUSED_AS = {
    "context_length_exceeded": 400,
    "invalid_messages": 400,
    "rate_limit_exceeded": 429,
    "preempted": 503,
    "preempted_too_often": 503,
}
"""HTTP statuses of what the engine refuses for what the tenant asked, or for what others need more; all else is a fault
of this worker, 500."""
RATE_WINDOW_S = 60.0
"""The RPM policy counts over a minute: by then it lets the tenant in again."""


@dataclass(eq=False, slots=True)
class Execution:
    order: WorkOrder
    input_tokens: int = 0
    output_tokens: int = 0
    over: bool = False
    """Its end is what the gate is told next, and the gate settles it."""
    aborting: bool = False
    """Its generation is to end: what the engine does not know yet is aborted as soon as it does."""
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
    """This worker does not take this order. `status` as HTTP has it; `retry_after_s`: when it may be sent again."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class Shed(Refusal):
    """Its tier is turned away for now, for the sake of those above it."""

    def __init__(self, retry_after_s: float) -> None:
        said = "The service is overloaded and serves more urgent work first; try again later."
        super().__init__(429, "overloaded", said, retry_after_s)


@dataclass(eq=False)
class Executions:
    """`settle_lost` is called for what ended without its gate. `watch` sees every event's time, and sheds."""

    engine: Engine
    slots: int
    clock: Clock
    settle_lost: SettleLost
    watching: InitVar[Watch | None] = None
    engine_serves: Callable[[], bool] = lambda: True
    """False while its engine is being replaced."""
    watch: Watch = field(init=False)
    accepting: bool = True
    """False while draining, and while the worker cannot reach the table to keep its leases."""
    _live: dict[str, Execution] = field(default_factory=dict)
    _unsettled: set[str] = field(default_factory=set)
    """Ended without their gate, not settled yet: off the engine, and still to be named, else they would be reaped."""
    _winding_up: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, watching: Watch | None) -> None:
        self.watch = watching or Watch(self.clock)

    def live(self) -> frozenset[str]:
        """What the worker answers for: whose leases are to be kept."""
        return frozenset(self._live) | self._unsettled

    def claim(self, order: WorkOrder) -> Execution:
        """Take the order on. Raises Refusal."""
        if order.model != self.engine.facts.model:
            raise Refusal(404, "model_not_found", "This worker serves another model.")
        if not self.accepting or not self.engine_serves():
            raise Refusal(503, "draining", "This worker takes no more work for now.")
        if order.execution in self.live():
            raise Refusal(409, "running_already", "This execution is running already.")
        if len(self._live) >= self.slots:
            raise Refusal(503, "worker_full", "All slots of this worker are taken.")
        if (retry_after_s := self.watch.turned_away_s(order.tier)) is not None:
            logger.info("shed", extra={"execution": order.execution, "tier": order.tier})
            raise Shed(retry_after_s)
        execution = Execution(order)
        self._live[execution.name] = execution
        self.watch.arrived(execution.name, order.tier, order.max_tokens)
        return execution

    async def run(self, execution: Execution) -> AsyncGenerator[bytes, None]:
        """The execution's lines. Closed early, its gate is gone: the work is aborted and settled from here."""
        events = self._generate(execution.order)
        upcoming = asyncio.ensure_future(anext(events))
        try:
            while not execution.over:
                await self._abort_if_late(execution)
                await asyncio.wait({upcoming}, timeout=self._patience_s(execution))
                if not upcoming.done():
                    yield ALIVE
                    continue
                said = await self._line(execution, upcoming)
                offered_s = self.watch.now_s()
                yield said
                self.watch.held(execution.name, self.watch.now_s() - offered_s)
                if not execution.over:
                    upcoming = asyncio.ensure_future(anext(events))
        finally:
            # A task of its own: this one may be cancelled again at every await.
            self._keep(asyncio.ensure_future(self._wind_up(execution, upcoming, events)))

    async def abort(self, name: str, *, lease_lost: bool = False) -> None:
        """`lease_lost`: and settle nothing, for another attempt may be under way."""
        execution = self._live.get(name)
        if execution is None or execution.lease_lost:
            return
        if lease_lost:
            logger.warning("lease lost", extra={"execution": name})
        execution.lease_lost, execution.aborting = lease_lost, True
        await self.engine.abort(name)

    async def abort_all(self, *, lease_lost: bool = False) -> None:
        await asyncio.gather(*(self.abort(name, lease_lost=lease_lost) for name in list(self._live)))

    async def idle(self) -> None:
        """Until nothing runs any more and everything that ended without its gate is settled."""
        while self._live or self._winding_up:
            await asyncio.wait(self._winding_up) if self._winding_up else await self.clock.sleep(0.05)

    async def _generate(self, order: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        """The engine's events; that it refuses the messages comes as any of its errors does."""
        prompt = order.prompt
        if prompt is None:
            prompt = self.engine.render_chat([asdict(message) for message in order.messages or ()])
        async with aclosing(self.engine.generate(engine_request(order, prompt, self.clock.now()))) as events:
            async for event in events:
                yield event

    async def _abort_if_late(self, execution: Execution) -> None:
        if not execution.aborting and self.clock.now() >= execution.order.deadline_at:
            self.watch.expiries[execution.order.tier] += 1
            await self.abort(execution.name)

    def _patience_s(self, execution: Execution) -> float:
        """Until the next sign of life, or the deadline."""
        if execution.aborting:
            return ALIVE_EVERY_S
        return max(0.0, min(ALIVE_EVERY_S, execution.order.deadline_at - self.clock.now()))

    async def _line(self, execution: Execution, upcoming: asyncio.Future[EngineEvent]) -> bytes:
        """The next event as a line; the engine's refusal as one too. Notes the counts, and the end."""
        try:
            event = upcoming.result()
        except EngineError as error:
            execution.over = True
            logger.info("refused", extra={"execution": execution.name, "code": error.code, **execution.counts()})
            return self._refused(execution, error)
        await self._noted(execution, event)
        if isinstance(event, Finished):
            execution.over = True
            logger.info("finished", extra={"execution": execution.name, "reason": event.reason, **execution.counts()})
        return encode_event(event)

    def _refused(self, execution: Execution, error: EngineError) -> bytes:
        self.watch.left(execution.name)
        status = REFUSED_AS.get(error.code, 500)
        retry_after_s: float | None = None
        if status == 503:
            retry_after_s = self.watch.come_back_s(execution.order.tier)
        elif status == 429:
            retry_after_s = RATE_WINDOW_S
        return encode_event(WorkRefused(status, error.code, error.message, retry_after_s))

    async def _noted(self, execution: Execution, event: EngineEvent) -> None:
        """An abort that came before the engine knew the request, say while it was tokenized, is repeated now."""
        execution.note(event)
        self.watch.noted(execution.name, event)
        if execution.aborting and isinstance(event, Started):
            await self.engine.abort(execution.name)

    async def _wind_up(
        self, execution: Execution, upcoming: asyncio.Future[EngineEvent], events: AsyncGenerator[EngineEvent, None]
    ) -> None:
        """Free the slot; where the gate is gone, abort first, take the exact counts from the end, and settle."""
        lost = not execution.over
        try:
            if lost:
                await self._run_out(execution, upcoming, events)
            await events.aclose()
        finally:
            self._live.pop(execution.name, None)
            self.watch.left(execution.name)
        if lost and not execution.lease_lost:
            self._unsettled.add(execution.name)
            try:
                await settle_patiently(self.settle_lost, self.clock, execution.order, **execution.counts())
            finally:
                self._unsettled.discard(execution.name)

    async def _run_out(
        self, execution: Execution, upcoming: asyncio.Future[EngineEvent], events: AsyncGenerator[EngineEvent, None]
    ) -> None:
        """To the end of what is aborted. An engine that fails on the way has told its last count."""
        try:
            await self.abort(execution.name)
            await self._noted(execution, await upcoming)
            async for event in events:
                await self._noted(execution, event)
        except Exception as error:  # whatever it is: the slot is to be freed, and the counts settled
            logger.warning("ended by %s", type(error).__name__, extra={"execution": execution.name})

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._winding_up.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._winding_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an execution could not be wound up: %s", type(error).__name__)
