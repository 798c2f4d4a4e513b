"""Runs the attempts of a call, one at a time. The answer's reader gets the events, the call's task the stream's end.

The spans of the call in this process are its waits and its attempts (docs/watching.md, One trace).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.tracing import NO_SPAN, NO_TRACING, Span, Tracing
from dispatcher.model.worker_protocol import Finished, WorkOrder, WorkRefused
from dispatcher.operations.calls.answer_events import AnswerEvents
from dispatcher.operations.calls.call import Call, order_of, span_attributes
from dispatcher.ports import WorkerClient

NOT_TAKEN = frozenset({"gate_unreachable", "grant_refused", "request_too_slow", "signed_before_start"})
"""The codes of refusals before the worker takes the attempt. The worker neither begins nor reports such an attempt."""

logger = logging.getLogger("headgate.gate")


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The worker sent its last event, so the log has the end of the attempt."""

    attempt: int
    worker: str
    event: Finished | WorkRefused


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream broke before its last event. `began` is False if the worker certainly did not begin the attempt."""

    attempt: int
    worker: str
    began: bool


class OwnAttempts:
    """The attempts that this process begins. `report` gets the end of each stream, unless `stop` closed it."""

    def __init__(
        self,
        workers: WorkerClient,
        call: Call,
        events: AnswerEvents,
        report: Callable[[LastEvent | Broken], None],
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self.highest = 0
        """The highest attempt that was offered to this process."""
        self.heard = 0
        """The highest attempt with an event from its worker, which therefore has the order."""
        self._workers = workers
        self._call = call
        self._events = events
        self._report = report
        self._spans = CallSpans(tracing, call)
        self._running: asyncio.Task[None] | None = None
        self._is_ending = False
        """The last event has arrived. The stream then ends by itself, so that its connection can be used again."""

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def begin(self, offer: Offer) -> None:
        self._events.begin()
        self._is_ending = False
        self._running = asyncio.ensure_future(
            self._run(offer, order_of(self._call, offer, self._spans.dispatch(offer)))
        )

    async def stop(self) -> None:
        """Close the stream of the running attempt, if there is one that does not end by itself."""
        running, self._running = self._running, None
        if running is not None and not running.done() and not self._is_ending:
            running.cancel()
            await asyncio.wait({running})
            self._spans.end("closed")

    async def close(self) -> None:
        """Stop, because the call is over or this process lets it go."""
        await self.stop()
        self._spans.end("left")

    async def _run(self, offer: Offer, order: WorkOrder) -> None:
        broken, is_over = Broken(offer.attempt, offer.worker, began=True), False
        try:
            async with aclosing(self._workers.execute(offer, order)) as events:
                async for event in events:
                    self.heard = offer.attempt
                    if isinstance(event, Finished | WorkRefused):
                        is_over = self._is_ending = True
                        self._ended_by(event)
                        self._report(LastEvent(offer.attempt, offer.worker, event))
                    else:
                        await self._events.put(event)
        except WorkerFailed as error:
            broken = Broken(offer.attempt, offer.worker, error.began)
        except Exception as error:
            logger.exception("the stream of an attempt failed: %s", type(error).__name__)
        if not is_over:
            self._spans.end("broken")
            self._spans.wait()
            self._report(broken)

    def _ended_by(self, event: Finished | WorkRefused) -> None:
        if isinstance(event, Finished):
            self._spans.end("finished", input_tokens=event.input_tokens, output_tokens=event.output_tokens)
            return
        self._spans.end("refused")
        if not event.final:
            self._spans.wait()


class CallSpans:
    """The spans of one call. One span is open at a time: `waited` until an offer is begun, `dispatched` while a worker
    has the call."""

    def __init__(self, tracing: Tracing, call: Call) -> None:
        self._tracing, self._call = tracing, call
        self._open: Span = NO_SPAN
        self.wait()

    def wait(self) -> None:
        """Begin a wait for the next offer."""
        if self._call.trace:
            self._open = self._tracing.span("waited", self._call.trace, span_attributes(self._call))

    def dispatch(self, offer: Offer) -> str:
        """End the wait and begin the attempt. Return the attempt's traceparent for the worker."""
        if not self._call.trace:
            return ""
        self._open.end("offered")
        place: dict[str, str | int] = {"headgate.attempt": offer.attempt, "headgate.worker": offer.worker}
        self._open = self._tracing.span("dispatched", self._call.trace, span_attributes(self._call) | place)
        return self._open.traceparent

    def end(self, outcome: str, **counts: int) -> None:
        """End what is open, if anything is."""
        self._open.end(outcome, **counts)
