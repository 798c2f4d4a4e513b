"""A call that this process follows (following.py): its attempts, and what its callers see of it.

The attempts of a call run one at a time. The answer's reader gets their events, and the call reacts to the end of the
stream.

Two attempts may generate different texts. So a streaming caller that has a token of an attempt can only get the rest of
that attempt's answer. A caller that has no token yet, or gets the answer as a whole, can get another attempt's answer.

The spans of the call in this process are its waits and its attempts (docs/watching.md, One trace).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf

from dispatcher.model.answers import Collected
from dispatcher.model.commands import Offer, Outcome
from dispatcher.model.errors import AnsweredError, WorkerFailed
from dispatcher.model.tracing import NO_SPAN, NO_TRACING, Span, Tracing
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkRefused
from dispatcher.operations.calls.call import Call, accept_of, order_of, span_attributes
from dispatcher.ports import Clock, GateLink, RunningAttempt, WorkerClient

EVENTS_AHEAD_MAX = 64
"""The most events that wait for the caller. While so many wait, no event is read from the worker."""


class Pause(Enum):
    """What the reader gets instead of an event."""

    WAITING = "no event came in time"
    END = "the answer is complete"


class AnswerEvents:
    """The events of an answer, for one reader. Without a reader (`unread`, `discard`) they are dropped.

    `streamed`: the reader passes each token to its caller at once. Otherwise it passes `collected` on at the end.
    `now`: the time in Unix seconds.
    """

    def __init__(self, now: Callable[[], float], *, streamed: bool, unread: bool = False) -> None:
        self.collected = Collected()
        """The choices and the counts from the last attempt."""
        self.count = 0
        """The number of events from all attempts."""
        self.first_at: float | None = None
        """When the last attempt's first token arrived."""
        self.is_full = False
        """True while the worker's next event must wait for the reader."""
        self.on_room: Callable[[], None] = lambda: None
        """What is called when the queue is no longer full."""
        self._now = now
        self._streamed = streamed
        self._unread = unread
        self._is_handed = False
        """True if the reader has a token of the last attempt."""
        self._events: deque[WorkEvent | Pause] = deque()
        self._error: AnsweredError | None = None
        self._reader: asyncio.Future[None] | None = None
        """Done when there is an event for the reader."""
        self._timer: asyncio.TimerHandle | None = None
        self._wait_until = inf
        """When the reader stops to wait, by the loop's clock."""

    @property
    def is_partly_delivered(self) -> bool:
        """Whether the caller has a part of the last attempt's answer. Then it can only get the rest of that answer."""
        return self._streamed and self._is_handed and not self._unread

    def begin(self) -> None:
        """Forget what the last attempt delivered, because a new one begins."""
        if self.count:
            self.collected, self.first_at, self._is_handed = Collected(), None, False
            self._events.clear()
            self.is_full = False

    def put(self, event: WorkEvent) -> None:
        self.count += 1
        self.collected.note(event)
        if self.first_at is None and not isinstance(event, Started):
            self.first_at = self._now()
        if not self._unread:
            self._events.append(event)
            self.is_full = self.is_full or len(self._events) >= EVENTS_AHEAD_MAX
            self._wake_reader()

    def end(self, error: AnsweredError | None) -> None:
        """Add the end. After all events the reader gets the end, or `error` is raised."""
        self._error = error
        self._events.append(Pause.END)
        self._wake_reader()

    def discard(self) -> None:
        """Drop all events but the end, because no reader wants them."""
        self._unread = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._events and self._events[0] is not Pause.END:
            self._events.popleft()
        self._make_room()

    async def next(self, timeout_s: float | None = None) -> list[WorkEvent | Pause]:
        """Return all events that are there, at least one; [END] at the end, [WAITING] after `timeout_s` without any.

        Raises the error with which the call ends.
        """
        if not self._events and not await self._wait(timeout_s):
            return [Pause.WAITING]
        events = list(self._events)
        if events[0] is Pause.END and self._error is not None:
            raise self._error
        self._events.clear()
        if events[-1] is Pause.END:
            self._events.append(Pause.END)  # it stays the end
            events = events[:-1] or events
        self._is_handed = self._is_handed or any(isinstance(event, Token) for event in events)
        self._make_room()
        return events

    async def _wait(self, timeout_s: float | None) -> bool:
        """Wait for an event. Return whether there is one."""
        loop = asyncio.get_running_loop()
        self._wait_until = inf if timeout_s is None else loop.time() + timeout_s
        if self._timer is not None and self._timer.when() > self._wait_until:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and timeout_s is not None:
            self._timer = loop.call_at(self._wait_until, self._on_time)
        reader = self._reader = loop.create_future()
        try:
            await reader
        finally:
            self._reader = None
        return bool(self._events)

    def _on_time(self) -> None:
        """Wake up the reader if it has waited long enough. One timer serves all its waits, which mostly end before."""
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._reader is None:
            return
        if loop.time() >= self._wait_until:
            self._wake_reader()
        elif self._wait_until < inf:
            self._timer = loop.call_at(self._wait_until, self._on_time)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _make_room(self) -> None:
        if self.is_full:
            self.is_full = False
            self.on_room()


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
        self._offer: Offer | None = None
        """The offer of the running attempt, until `stop`."""
        self._running: RunningAttempt | None = None
        """The stream of the running attempt, until its end."""
        events.on_room = self._resume

    @property
    def is_running(self) -> bool:
        return self._offer is not None

    def begin(self, offer: Offer) -> None:
        """Send the order. Then this is the receiver of the attempt's events (ports.AttemptEvents)."""
        self._events.begin()
        self._offer = offer
        order = order_of(self._call, offer, self._spans.dispatch(offer))
        try:
            self._running = self._workers.execute(offer, order, self)
        except Exception as error:
            logger.exception("an order was not sent: %s", type(error).__name__)
            asyncio.get_running_loop().call_soon(self._fail_order, offer)

    def take(self, event: WorkEvent) -> None:
        if (offer := self._offer) is None:
            return
        self.heard = offer.attempt
        if isinstance(event, Finished | WorkRefused):
            self._running = None  # it ends by itself, so that its connection can be used again
            self._end_span(event)
            self._report(LastEvent(offer.attempt, offer.worker, event))
            return
        self._events.put(event)
        if self._events.is_full and self._running is not None:
            self._running.pause()

    def fail(self, error: WorkerFailed) -> None:
        if (offer := self._offer) is not None:
            self._running = None
            self._spans.end("broken")
            self._spans.wait()
            self._report(Broken(offer.attempt, offer.worker, error.began))

    def stop(self) -> None:
        """Close the stream of the running attempt, if there is one that does not end by itself."""
        running, self._running, self._offer = self._running, None, None
        if running is not None:
            running.close()
            self._spans.end("closed")

    def close(self) -> None:
        """Stop, because the call is over or this process lets it go."""
        self.stop()
        self._spans.end("left")

    def _resume(self) -> None:
        if self._running is not None:
            self._running.resume()

    def _fail_order(self, offer: Offer) -> None:
        if self._offer is offer:
            self.fail(WorkerFailed())

    def _end_span(self, event: Finished | WorkRefused) -> None:
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


class Signal(Enum):
    LEFT = "the last caller left"
    LATE = "the deadline has passed"
    LOOK = "it is time to see whether the tenant still exists"


Item = Outcome | LastEvent | Broken | Signal
"""What the call reacts to."""


class FollowedCall:
    """A call that this process follows, until the call ends or this process lets it go. `unread`: no caller reads the
    events. What it does is in Following; this is what its callers see."""

    def __init__(
        self, call: Call, link: GateLink, workers: WorkerClient, tracing: Tracing, clock: Clock, *, unread: bool
    ) -> None:
        self.call = call
        self.begun = asyncio.Event()
        """Set when this process has begun an offer of the call."""
        self.ended = asyncio.Event()
        self.error: AnsweredError | None = None
        """The error with which the call ended; None if it is done, or if this process no longer holds it."""
        self._link = link
        self._callers = 1
        self._is_over = False
        self._events = AnswerEvents(clock.now, streamed=call.request.stream, unread=unread)
        self._attempts = OwnAttempts(workers, call, self._events, self.take, tracing)
        self._first: Outcome | AnsweredError | None = None
        """The gate's answer to the first command, or the error with which the call ended before it."""
        self._answered = asyncio.Event()

    def take(self, item: Item) -> None:
        """React to the item."""
        raise NotImplementedError

    def _answer_first(self, first: Outcome | AnsweredError) -> None:
        if self._first is None:
            self._first = first
            self._answered.set()

    @property
    def attempt(self) -> int:
        """The highest attempt that was offered here; 0 if none was."""
        return self._attempts.highest

    @property
    def is_over(self) -> bool:
        """True if no further offer is begun here."""
        return self._is_over

    async def first(self) -> Outcome:
        """Return the gate's answer to the first command. Raises StoreUnavailable."""
        if self._first is None:
            await self._answered.wait()
        if isinstance(self._first, AnsweredError):
            raise self._first
        assert self._first is not None  # noqa: S101 - it is set with the event
        return self._first

    @property
    def answer(self) -> Collected:
        """The choices and counts of the last attempt so far; the whole answer once the call is done."""
        return self._events.collected

    @property
    def first_token_at(self) -> float | None:
        """When the first token of the last attempt arrived, in Unix seconds; None if there is none."""
        return self._events.first_at

    async def whole(self) -> Collected:
        """Wait for the end, and return the whole answer. Raises the error with which the call ends."""
        self._events.discard()
        await self._events.next()
        return self.answer

    async def next_events(self, timeout_s: float | None = None) -> list[WorkEvent | Pause]:
        """Return all events that are there for the one reader, at least one; [END] at the end, [WAITING] after
        `timeout_s` without any. Raises the error with which the call ends."""
        return await self._events.next(timeout_s)

    def join(self) -> bool:
        """Add a caller that waits for the end and does not read the events. Return False if the call is over."""
        self._callers += not self._is_over
        return not self._is_over

    async def hold_again(self) -> bool:
        """Become the holder of a durable call again, because the gate may have launched the call meanwhile.

        Return False if the call is ending here, so that no further offer is begun.
        """
        if not self._is_over:
            outcome = await self._link.do(accept_of(self.call, self._link.process))
            if isinstance(outcome, Offer):
                self.take(outcome)
        return not self._is_over

    def leave(self, *, reader: bool = False) -> None:
        """Remove a caller. Each caller must leave once, even after the end. `reader`: it reads the events."""
        self._callers -= 1
        if reader or not self._callers:
            self._events.discard()
        if not self._callers:
            self.take(Signal.LEFT)
