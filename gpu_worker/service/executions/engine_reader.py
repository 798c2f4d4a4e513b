"""Has the engine execute work orders: hands it the requests, and reads and records the events of the executions.

Makes the engine end late and aborted executions.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace

from dispatcher.model.worker_protocol import Finished, Started, WorkOrder
from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, EngineError, EngineEvent
from gpu_worker.service.executions.adapter_loads import AdapterLoads
from gpu_worker.service.executions.execution import Abort, EventsAhead, Execution, ExecutionSpans
from gpu_worker.service.slo_watch import SloWatch

FIRST_TOKENS_MAX = 1000
"""So many times of first tokens are kept, the latest ones: enough for percentiles of a minute."""


@dataclass(eq=False)
class Tally:
    """Counts what a worker did since it was last asked, over all tenants: for the metrics of an interval.

    `output_tokens`: generated. `failed`: requests that this worker answered with status 500.
    """

    output_tokens: int = 0
    failed: int = 0
    first_token_ms: deque[float] = field(default_factory=lambda: deque(maxlen=FIRST_TOKENS_MAX))
    """The times from the arrival of an order to its first token, in milliseconds."""

    def take(self) -> Tally:
        """Return the counts, and begin again at zero."""
        taken = Tally(self.output_tokens, self.failed, self.first_token_ms)
        self.output_tokens, self.failed = 0, 0
        self.first_token_ms = deque(maxlen=FIRST_TOKENS_MAX)
        return taken


logger = logging.getLogger("headgate.worker")

STEP_S = 2.0
"""The longest wait for an event. After it the caller gets an Alive event."""


@dataclass(eq=False)
class EngineReader:
    """Reads the events of all executions of one engine. `watch` records the time of every event, `tally` counts.
    `loads`: None: no load of an adapter is reported."""

    engine: Engine
    clock: Clock
    watch: SloWatch
    tally: Tally
    loads: AdapterLoads | None = None

    def begin(self, order: WorkOrder, spans: ExecutionSpans) -> Execution:
        """Return the execution of an order. The engine gets the order at the first step."""
        events = self.engine.generate(engine_order(order, self.clock.now()))
        return Execution(order, self.clock.monotonic(), events, spans)

    async def step(self, execution: Execution) -> list[EngineEvent]:
        """Return the next events; none if there was none for STEP_S seconds, or if the engine ended with an error.

        After the end, `execution.result` is the engine's last event or its error.
        """
        await self._abort_if_late(execution)
        if execution.ahead is None:
            execution.ahead = EventsAhead(execution.events)
        try:
            events = await execution.ahead.next(self._wait_max_s(execution))
        except Exception as error:
            self._record_error(execution, error)
            return []
        for event in events:
            await self._note(execution, event)
        return events

    async def run_out(self, execution: Execution) -> None:
        """Read the events to the end, without a caller."""
        while execution.result is None:
            await self.step(execution)

    async def abort(self, execution: Execution, why: Abort) -> None:
        """Make the engine end an execution. The first reason is kept, but LEASE_LOST replaces any other."""
        if execution.abort is Abort.LEASE_LOST:
            return
        if execution.abort is None or why is Abort.LEASE_LOST:
            logger.info("aborted: %s", why.value, extra={"execution": execution.name})
            execution.abort = why
        await self.engine.abort(execution.name)

    async def _abort_if_late(self, execution: Execution) -> None:
        if execution.abort is None and self.clock.now() >= execution.order.terms.deadline_at:
            self.watch.expiries[execution.order.tier] += 1
            await self.abort(execution, Abort.LATE)

    def _wait_max_s(self, execution: Execution) -> float:
        if execution.abort is not None:
            return STEP_S
        return max(0.0, min(STEP_S, execution.order.terms.deadline_at - self.clock.now()))

    async def _note(self, execution: Execution, event: EngineEvent) -> None:
        """Record the event's counts and time. If the execution was aborted before the engine had the request, for
        example during tokenization, repeat the abort."""
        tokens, had_none = execution.output_tokens, not execution.first_token_s
        execution.note(event, self.clock.monotonic())
        self.tally.output_tokens += max(0, execution.output_tokens - tokens)
        if had_none and execution.first_token_s:
            self.tally.first_token_ms.append(round(1000 * execution.first_token_s, 1))
            execution.adapter_loaded = self.loads is not None and self.loads.on_first_token(execution)
        self.watch.note(execution.name, event)
        if isinstance(event, Finished):
            execution.result = event
        elif execution.abort is not None and isinstance(event, Started):
            await self.engine.abort(execution.name)

    def _record_error(self, execution: Execution, error: BaseException) -> None:
        """Record an error of any kind as the result, so that the slot is freed and the end is reported."""
        self.watch.on_left(execution.name)
        if isinstance(error, EngineError):
            execution.result = error
            return
        logger.error("the engine failed: %s", type(error).__name__, extra={"execution": execution.name})
        execution.result = EngineError("engine_failed", "The engine failed on this request.")


def engine_order(order: WorkOrder, now: float) -> WorkOrder:
    """Return the order for the engine. `now` is in Unix seconds, by the same clock as the order's deadline.

    The tenant's name is put before the application's name. Policies learn from the requests of an application, and
    requests of one tenant must not affect another tenant that uses the same application name.
    """
    terms = order.terms
    if terms.app:
        terms = terms._replace(app=f"{terms.tenant}/{terms.app}")
    return replace(order, terms=terms, timeout_s=max(0.0, terms.deadline_at - now))
