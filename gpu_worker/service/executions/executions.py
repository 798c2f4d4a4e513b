"""The executions on a worker: at most one per slot, each attempt at most once, none beyond its deadline.

Every attempt that reached the worker ends with exactly one report to the log (endings.py), in this order: the slot is
freed, the report is put into the outbox, the log acknowledges it, and then the caller gets the last event. So the
caller's answer agrees with the log. Until the acknowledgement arrives, the caller gets Alive events.

If the caller closes the stream, the execution ends, unless the call is durable. A durable call's execution goes on, and
its answer is stored with its end.

The worker remembers the attempts that it must not begin: those that reached it before, and those that it returned to
the gate. An execution token is valid for many seconds, so a copy of an order may arrive after its attempt has ended.
And a process that was paused may sign an order for an offer that this worker returned to the gate long ago. The
attempts of a call have rising numbers, so an order with a lower number than the highest seen one is stale too. The
memory is bounded by time and number. If an order arrives after its attempt was forgotten, the execution begins. Some
seconds later it is aborted, because the log does not hold the attempt (agent.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from dispatcher.model.commands import Outcome, Return
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken
from dispatcher.model.kept import ATTEMPTS_MAX
from dispatcher.model.shards import shard_of_call
from dispatcher.model.tracing import NO_TRACING, Tracing
from dispatcher.model.worker_protocol import (
    Alive,
    Finished,
    WorkOrder,
    WorkRefused,
    execution_name,
    parse_execution,
)
from dispatcher.ports import Clock
from dispatcher.workers.wire import OrderRefused, encode_event
from gpu_worker.engines.interface import Engine, EngineError, EngineEvent
from gpu_worker.policies.expected_capacity import FillTimes
from gpu_worker.service.executions.adapter_loads import AdapterLoads
from gpu_worker.service.executions.endings import confirms, ending, outcome_of, refused
from gpu_worker.service.executions.engine_reader import STEP_S, EngineReader, Tally
from gpu_worker.service.executions.execution import Abort, Bundles, Execution, ExecutionSpans
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.executions.outbox_journal import AttemptReport
from gpu_worker.service.health.engine_health import EngineHealth
from gpu_worker.service.slo_watch import SloWatch

logger = logging.getLogger("headgate.worker")

ALIVE = encode_event(Alive())
_LATE_S = 2.0
"""If an execution ends at its deadline, its last event waits for the log this long."""
RETURN_S = 10.0
"""The last event of a returned attempt waits for the log this long. After that it is not sent, and the caller's process
gets the call's further news from the gate."""
KEEP_S = 1000.0
"""An attempt is remembered for this time. It is longer than a call lives: a deadline is at most 900 s away."""
TOKEN_S = 2 * EXECUTION_TOKEN_TTL_S
"""After this time every token of an attempt has expired, even if the clocks differ by some seconds."""
_SEEN_MAX = 65_536
"""If there are more attempts than this, those older than TOKEN_S are forgotten. Younger ones are always kept."""
SKEW_S = 2.0
"""The largest difference between the clocks of gate and worker. With a larger one, a gate does not write (rule 10)."""


class Refusal(Exception):
    """The worker refuses this HTTP request, and reports nothing about its attempt. `status` is an HTTP status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _Seen(NamedTuple):
    attempt: int
    at_s: float


@dataclass(eq=False)
class SeenAttempts:
    """The memory of one process. `started_at`: the time at which it began to receive orders, in Unix seconds."""

    clock: Clock
    started_at: float = 0.0
    seen_max: int = _SEEN_MAX
    _seen: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)
    """The highest seen attempt of each call, the oldest entry first."""

    def __len__(self) -> int:
        return len(self._seen)

    def is_stale(self, token: ExecutionToken) -> bool:
        """Return whether the token is older than this process. Then an earlier process may have begun its order."""
        return token.expires_at - EXECUTION_TOKEN_TTL_S < self.started_at - SKEW_S

    def take(self, call_id: str, attempt: int) -> bool:
        """Remember the attempt. Return False if it must not begin, because it or a later attempt was seen before."""
        now_s = self.clock.monotonic()
        self._forget(now_s)
        if self.has(call_id, attempt):
            return False
        self._seen[call_id] = _Seen(attempt, now_s)
        self._seen.move_to_end(call_id)
        return True

    def has(self, call_id: str, attempt: int) -> bool:
        seen = self._seen.get(call_id)
        return seen is not None and attempt <= seen.attempt

    def _forget(self, now_s: float) -> None:
        while self._seen:
            call_id, oldest = next(iter(self._seen.items()))
            keep_s = KEEP_S if len(self._seen) <= self.seen_max else TOKEN_S
            if now_s - oldest.at_s < keep_s:
                return
            del self._seen[call_id]


class _LastEvent(NamedTuple):
    event: Finished | WorkRefused
    report: AttemptReport
    delivery: asyncio.Task[Outcome]
    tenant: str = ""


@dataclass(eq=False)
class Executions:
    """All executions of one worker. `worker` is its id in the log. `slo_watch` records the time of every event, and
    sheds requests."""

    worker: str
    engine: Engine
    slots: int
    clock: Clock
    outbox: Outbox
    slo_watch: InitVar[SloWatch | None] = None
    engine_serves: Callable[[], bool] = lambda: True
    """False while the engine is being replaced."""
    watch: SloWatch = field(init=False)
    started_at: float = 0.0
    """The time at which this process began to receive orders, in Unix seconds. Older orders are refused."""
    accepting: bool = True
    """False while draining, and while the worker's lease at the gate is in doubt."""
    closed_shards: set[int] = field(default_factory=set)
    """The shards of which no order is accepted, for the same reasons (shard_view.py)."""
    tracing: Tracing = NO_TRACING
    fenced: Counter[str] = field(default_factory=Counter)
    """Attempts that were returned because their order did not arrive, by the reason of the return."""
    tally: Tally = field(default_factory=Tally)
    health: EngineHealth = field(init=False)
    fills: FillTimes = field(default_factory=FillTimes)
    _reader: EngineReader = field(init=False)
    _seen: SeenAttempts = field(init=False)
    _live: dict[str, Execution] = field(default_factory=dict)
    _deciding: set[str] = field(default_factory=set)
    """Attempts of calls that failed here before, while `health` decides whether they run."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, slo_watch: SloWatch | None) -> None:
        self.watch = slo_watch or SloWatch(self.clock)
        self._reader = EngineReader(
            self.engine, self.clock, self.watch, self.tally, AdapterLoads(self.engine, self._live)
        )
        self._seen = SeenAttempts(self.clock, self.started_at)
        running = self._live.__len__
        self.health = EngineHealth(self.engine, self.slots, self.clock, running, lambda: self.engine_serves())

    def recover(self) -> None:
        """Deliver the reports that an earlier process left in the outbox. Never begin their attempts again."""
        for report in self.outbox.recover():
            self._seen.take(report.id, report.attempt)

    def running(self) -> frozenset[str]:
        """Return the executions that hold a slot."""
        return frozenset(self._live)

    def prompt_tokens(self) -> int:
        """Return the prompt tokens of the executions that hold a slot."""
        return sum(execution.input_tokens for execution in self._live.values())

    def live(self) -> frozenset[str]:
        """Return the attempts that run or whose reports are not in the log yet."""
        return self.running() | self.outbox.live() | self._deciding

    def run(self, token: ExecutionToken, order: WorkOrder | OrderRefused) -> AsyncGenerator[bytes, None]:
        """Begin the order's execution and return its lines: each item has those of the events that are there, at least
        one. `token` must be verified. An invalid order ends its call.

        Read the first item at once: only after that does closing the generator free the slot. Raises Refusal if the
        attempt reached this worker before or may have, or if the outbox is full.
        """
        self._take(token)
        if isinstance(order, OrderRefused):
            return self._refuse(token, WorkRefused(422, "invalid_order", str(order), final=True))
        if (refusal := self._refusal(order)) is not None:
            return self._refuse(token, refusal, order.terms.tenant)
        return self._again(token, order) if self.health.knows(order.invocation) else self._begin(order)

    def _begin(self, order: WorkOrder) -> AsyncGenerator[bytes, None]:
        execution = self._reader.begin(order, ExecutionSpans(self.tracing, order, self.worker))
        self._live[execution.name] = execution
        self.fills.set_running(len(self._live), self.clock.monotonic())
        self.watch.on_arrived(execution.name, order.tier, order.likely_tokens * order.choices)
        return self._lines(execution)

    def fence(self, name: str, *, is_old: bool) -> None:
        """Return an attempt to the gate that the log holds and that is not live here. From now on it never begins.

        `is_old`: an earlier process of this worker may have begun it. The reason of the return is "lost" if the attempt
        was begun or may have been. Otherwise it is "not_begun", and the gate suspends the caller's process.
        """
        if name in self.live():
            return
        call_id, attempt = parse_execution(name)
        reason = "not_begun" if self._seen.take(call_id, attempt) and not is_old else "lost"
        self.fenced[reason] += 1
        logger.warning("returned: %s", reason, extra={"execution": name})
        self.outbox.post(Return(call_id, attempt, reason, self.worker))

    async def abort(self, name: str, why: Abort) -> None:
        if (execution := self._live.get(name)) is not None:
            await self._reader.abort(execution, why)

    async def abort_all(self, why: Abort) -> None:
        await asyncio.gather(*(self.abort(name, why) for name in list(self._live)))

    async def idle(self) -> None:
        """Wait until nothing runs and every report is in the log."""
        while self._live or self._deciding or self._closing or len(self.outbox):
            if self._closing:
                await asyncio.wait(set(self._closing))
            elif self._live or self._deciding:
                await self.clock.sleep(0.05)
            else:
                await self.outbox.flushed()

    def _take(self, token: ExecutionToken) -> None:
        if self.outbox.full:
            raise Refusal(503, "gate_unreachable", "This worker has too many reports that the gate has not confirmed.")
        if self._seen.is_stale(token):
            raise Refusal(409, "signed_before_start", "This order was signed before this worker was started.")
        if not self._seen.take(token.invocation, token.attempt):
            raise Refusal(409, "seen_already", "This attempt or a later one reached this worker before.")

    def _refusal(self, order: WorkOrder) -> WorkRefused | None:
        facts, model = self.engine.facts, order.terms.model
        if model != facts.model and not facts.has_adapter(model):
            return WorkRefused(404, "model_not_found", "This worker serves another model.")
        is_open = self.accepting and shard_of_call(order.invocation) not in self.closed_shards
        if not is_open or not self.health.serves():
            return WorkRefused(503, "draining", "This worker takes no more work for now.")
        if len(self._live) >= self.slots:
            return WorkRefused(503, "worker_full", "All slots of this worker are taken.")
        if order.terms.deferred or (retry_after_s := self.watch.shed_retry_after_s(order.tier)) is None:
            return None
        message = "The service is overloaded and serves more urgent work first; try again later."
        return WorkRefused(429, "overloaded", message, retry_after_s, final=True)

    def _refuse(self, token: ExecutionToken, event: WorkRefused, tenant: str = "") -> AsyncGenerator[bytes, None]:
        logger.info("refused", extra={"execution": token.execution, "code": event.code})
        report = refused(token.invocation, token.attempt, self.worker, event, tenant)
        last = _LastEvent(event, report, self.outbox.post(report), tenant)
        return self._last_line(last, self.clock.now() + RETURN_S)

    async def _again(self, token: ExecutionToken, order: WorkOrder) -> AsyncGenerator[bytes, None]:
        """Decide on a call that failed here before. If the caller leaves meanwhile, the call ends."""
        refusal: WorkRefused | None = self.health.final_refusal(order)
        self._deciding.add(token.execution)
        try:
            refusal = await self.health.refusal(order)
        finally:
            lines = self._begin(order) if refusal is None else self._refuse(token, refusal, order.terms.tenant)
            self._deciding.discard(token.execution)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def _lines(self, execution: Execution) -> AsyncGenerator[bytes, None]:
        """Yield the execution's lines. If the generator is closed before the end, the caller has left."""
        now_s = self.clock.monotonic
        bundles = None if execution.order.streamed else Bundles(now_s())
        try:
            while execution.result is None:
                events = await self._reader.step(execution)
                tokens = events[:-1] if isinstance(execution.result, Finished) else events
                sent = _lines_of(tokens, bundles, now_s(), is_silent=not events and execution.result is None)
                if sent:
                    offered_s = self.watch.now_s()
                    yield sent
                    self.watch.reader_delayed(execution.name, self.watch.now_s() - offered_s)
            last = self._end(execution)
            for rest in bundles.take(now_s()) if bundles is not None else ():
                yield encode_event(rest)
            if last is not None:
                async with aclosing(self._last_line(last, self._until(execution.order, last.report))) as lines:
                    async for line in lines:
                        yield line
        finally:
            # A task of its own, because this one may be cancelled at every await.
            closing = asyncio.ensure_future(self._close(execution))
            self._closing.add(closing)
            closing.add_done_callback(self._on_close)

    async def _last_line(self, last: _LastEvent, until: float) -> AsyncGenerator[bytes, None]:
        """Yield Alive events until the log has the report, or until `until` (Unix seconds). Then yield the last event.

        Yield no last event if the log does not answer in time, or if a later attempt has replaced this one.
        """
        event, report, delivery, tenant = last
        name = execution_name(report.id, report.attempt)
        while not delivery.done() and (left_s := until - self.clock.now()) > 0:
            await asyncio.wait({delivery}, timeout=min(STEP_S, left_s))
            if not delivery.done():
                yield ALIVE
        if not delivery.done() or delivery.cancelled():
            logger.warning("no last event: the log did not answer in time", extra={"execution": name})
        elif not confirms(report, delivery.result()):
            logger.warning("no last event: the attempt was fenced", extra={"execution": name})
        else:
            if isinstance(event, WorkRefused) and (event.final or report.attempt >= ATTEMPTS_MAX):
                await self.clock.sleep(self.health.hold_s(tenant))
            yield encode_event(event)

    def _until(self, order: WorkOrder, report: AttemptReport) -> float:
        """Return the time until which the last event waits for the log, in Unix seconds."""
        now = self.clock.now()
        return now + RETURN_S if isinstance(report, Return) else max(order.terms.deadline_at, now + _LATE_S)

    def _end(self, execution: Execution) -> _LastEvent | None:
        """Free the slot and begin to deliver the report. Return the last event for the caller, or None."""
        del self._live[execution.name]
        self.fills.set_running(len(self._live), self.clock.monotonic())
        self.watch.on_left(execution.name)
        if execution.abort is None and not execution.caller_left:
            self.health.note(execution.order, execution.result)
        retry_after_s = self.watch.retry_after_s(execution.order.tier)
        ended = ending(execution, self.worker, self.clock.now(), retry_after_s)
        self.tally.failed += isinstance(ended.event, WorkRefused) and ended.event.status == 500
        fields = {"execution": execution.name, **execution.counts()}
        error = execution.result.code if isinstance(execution.result, EngineError) else ""
        settled = execution.spans.settle(
            "unreported" if ended.report is None else outcome_of(ended.report), error, execution.counts()
        )
        if ended.report is None:
            settled.end("unreported")
            logger.warning("ended, not reported: the log does not hold the attempt", extra=fields)
            return None
        logger.info("ended: %s", outcome_of(ended.report), extra=fields)
        delivery = self.outbox.post(ended.report)
        delivery.add_done_callback(lambda _: settled.end("reported"))
        return (
            None
            if ended.event is None
            else _LastEvent(ended.event, ended.report, delivery, execution.order.terms.tenant)
        )

    async def _close(self, execution: Execution) -> None:
        """Release the engine's stream. If the caller has left, first read it to its end and end the execution."""
        try:
            if execution.result is None:
                execution.caller_left = True
                if not execution.order.terms.durable:
                    await self._reader.abort(execution, Abort.CALLER_LEFT)
                await self._reader.run_out(execution)
            await execution.events.aclose()
        finally:
            if execution.name in self._live:
                self._end(execution)

    def _on_close(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an execution could not be closed: %s", type(error).__name__)


def _lines_of(events: Sequence[EngineEvent], bundles: Bundles | None, now_s: float, *, is_silent: bool) -> bytes:
    """Return what the caller gets after a step of its execution. `is_silent`: there was no event for a while."""
    sent = events
    if bundles is not None:
        sent = bundles.take(now_s) if is_silent else [due for each in events for due in bundles.add(each, now_s)]
    return b"".join(map(encode_event, sent)) or (ALIVE if is_silent else b"")
