"""The executions that run on a worker: at most one per slot, each once, each until its deadline at most."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import InitVar, asdict, dataclass, field

from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkOrder, WorkRefused
from dispatcher.old_ports import Clock
from dispatcher.worker_wire import encode_event
from gpu_worker.engines.interface import Engine, EngineError, EngineEvent
from gpu_worker.service.engine_request import engine_request
from gpu_worker.service.settlement import SettleLost, settle_with_retries
from gpu_worker.service.slo.watch import SloWatch

logger = logging.getLogger("headgate.worker")

ALIVE = encode_event(Alive())
ALIVE_EVERY_S = 2.0
"""A line is sent at least this often, so that a silent worker is a dead one."""
REFUSED_AS = {
    "context_length_exceeded": 400,
    "invalid_messages": 400,
    "rate_limit_exceeded": 429,
    "preempted": 503,
    "preempted_too_often": 503,
}
"""HTTP statuses of the engine's errors that the request caused, or more urgent requests. Any other error is a fault of
this worker: 500."""
RATE_WINDOW_S = 60.0
"""The RPM policy counts over a minute; then it accepts the tenant again."""


@dataclass(eq=False, slots=True)
class Execution:
    order: WorkOrder
    input_tokens: int = 0
    output_tokens: int = 0
    ended: bool = False
    """The final event is about to be sent; the gate settles."""
    aborting: bool = False
    """The engine is to end it: at once, or as soon as it knows the request."""
    lease_lost: bool = False
    """Another attempt owns the invocation: this worker must not settle it."""

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
    """This worker does not accept this order. `status`: of HTTP. `retry_after_s`: when the order may be sent again."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class Shed(Refusal):
    """The order's tier is shed for now, to protect more urgent tiers."""

    def __init__(self, retry_after_s: float) -> None:
        message = "The service is overloaded and serves more urgent work first; try again later."
        super().__init__(429, "overloaded", message, retry_after_s)


@dataclass(eq=False)
class Executions:
    """`settle_lost` settles executions that lost their gate. `watch` notes the time of every event, and sheds."""

    engine: Engine
    slots: int
    clock: Clock
    settle_lost: SettleLost
    slo_watch: InitVar[SloWatch | None] = None
    engine_serves: Callable[[], bool] = lambda: True
    """False while the engine is being replaced."""
    watch: SloWatch = field(init=False)
    accepting: bool = True
    """False while draining, and while the worker cannot reach DynamoDB to keep its leases."""
    _live: dict[str, Execution] = field(default_factory=dict)
    _unsettled: set[str] = field(default_factory=set)
    """Executions that ended without their gate and are not settled yet. Heartbeats still name them, else the gate would
    reclaim their leases."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, slo_watch: SloWatch | None) -> None:
        self.watch = slo_watch or SloWatch(self.clock)

    def live(self) -> frozenset[str]:
        """Return the executions whose leases this worker keeps."""
        return frozenset(self._live) | self._unsettled

    def claim(self, order: WorkOrder) -> Execution:
        """Accept the order. Raises Refusal."""
        if order.model != self.engine.facts.model:
            raise Refusal(404, "model_not_found", "This worker serves another model.")
        if not self.accepting or not self.engine_serves():
            raise Refusal(503, "draining", "This worker takes no more work for now.")
        if order.execution in self.live():
            raise Refusal(409, "running_already", "This execution is running already.")
        if len(self._live) >= self.slots:
            raise Refusal(503, "worker_full", "All slots of this worker are taken.")
        if (retry_after_s := self.watch.shed_retry_after_s(order.tier)) is not None:
            logger.info("shed", extra={"execution": order.execution, "tier": order.tier})
            raise Shed(retry_after_s)
        execution = Execution(order)
        self._live[execution.name] = execution
        self.watch.arrived(execution.name, order.tier, order.max_tokens)
        return execution

    async def run(self, execution: Execution) -> AsyncGenerator[bytes, None]:
        """Yield the execution's lines. If it is closed early, the gate is gone: the work is aborted and settled."""
        events = self._generate(execution.order)
        upcoming = asyncio.ensure_future(anext(events))
        try:
            while not execution.ended:
                await self._abort_if_late(execution)
                await asyncio.wait({upcoming}, timeout=self._wait_max_s(execution))
                if not upcoming.done():
                    yield ALIVE
                    continue
                line = await self._encode(execution, upcoming)
                offered_s = self.watch.now_s()
                yield line
                self.watch.reader_delayed(execution.name, self.watch.now_s() - offered_s)
                if not execution.ended:
                    upcoming = asyncio.ensure_future(anext(events))
        finally:
            # A task of its own, because this one may be cancelled again at every await.
            task = asyncio.ensure_future(self._close(execution, upcoming, events))
            self._closing.add(task)
            task.add_done_callback(self._closed)

    async def abort(self, name: str, *, lease_lost: bool = False) -> None:
        """End an execution. `lease_lost`: and do not settle it, because another attempt may be running."""
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
        """Wait until nothing runs and every execution that ended without its gate is settled."""
        while self._live or self._closing:
            await asyncio.wait(self._closing) if self._closing else await self.clock.sleep(0.05)

    async def _generate(self, order: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        """Yield the engine's events. Messages that it refuses raise here, as any of its errors."""
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

    def _wait_max_s(self, execution: Execution) -> float:
        """Return how long to wait for an event: until the next sign of life, or the deadline."""
        if execution.aborting:
            return ALIVE_EVERY_S
        return max(0.0, min(ALIVE_EVERY_S, execution.order.deadline_at - self.clock.now()))

    async def _encode(self, execution: Execution, upcoming: asyncio.Future[EngineEvent]) -> bytes:
        """Return the line of the next event, or of the engine's refusal. Notes the counts, and the end."""
        try:
            event = upcoming.result()
        except EngineError as error:
            execution.ended = True
            logger.info("refused", extra={"execution": execution.name, "code": error.code, **execution.counts()})
            return self._refused(execution, error)
        await self._note(execution, event)
        if isinstance(event, Finished):
            execution.ended = True
            logger.info("finished", extra={"execution": execution.name, "reason": event.reason, **execution.counts()})
        return encode_event(event)

    def _refused(self, execution: Execution, error: EngineError) -> bytes:
        self.watch.left(execution.name)
        status = REFUSED_AS.get(error.code, 500)
        retry_after_s: float | None = None
        if status == 503:
            retry_after_s = self.watch.retry_after_s(execution.order.tier)
        elif status == 429:
            retry_after_s = RATE_WINDOW_S
        return encode_event(WorkRefused(status, error.code, error.message, retry_after_s))

    async def _note(self, execution: Execution, event: EngineEvent) -> None:
        """Note the event's counts and time. Repeat an abort that came before the engine knew the request, for example
        during its tokenization."""
        execution.note(event)
        self.watch.note(execution.name, event)
        if execution.aborting and isinstance(event, Started):
            await self.engine.abort(execution.name)

    async def _close(
        self, execution: Execution, upcoming: asyncio.Future[EngineEvent], events: AsyncGenerator[EngineEvent, None]
    ) -> None:
        """Free the slot. If the gate is gone, first abort, then settle by the exact counts of the end."""
        lost = not execution.ended
        try:
            if lost:
                await self._abort_and_read(execution, upcoming, events)
            await events.aclose()
        finally:
            self._live.pop(execution.name, None)
            self.watch.left(execution.name)
        if lost and not execution.lease_lost:
            self._unsettled.add(execution.name)
            try:
                await settle_with_retries(self.settle_lost, self.clock, execution.order, **execution.counts())
            finally:
                self._unsettled.discard(execution.name)

    async def _abort_and_read(
        self, execution: Execution, upcoming: asyncio.Future[EngineEvent], events: AsyncGenerator[EngineEvent, None]
    ) -> None:
        """Abort, and read the events that are left. If the engine fails meanwhile, its last counts stand."""
        try:
            await self.abort(execution.name)
            await self._note(execution, await upcoming)
            async for event in events:
                await self._note(execution, event)
        except Exception as error:  # of any kind: the slot must be freed, and the counts settled
            logger.warning("ended by %s", type(error).__name__, extra={"execution": execution.name})

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an execution could not be closed: %s", type(error).__name__)
