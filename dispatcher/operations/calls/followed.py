"""What the callers of a call in this process see of the task that follows it (following.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum

from dispatcher.model.answers import Collected
from dispatcher.model.commands import Offer, Outcome
from dispatcher.model.errors import AnsweredError
from dispatcher.model.tracing import Tracing
from dispatcher.model.worker_protocol import WorkEvent
from dispatcher.operations.calls.answer_events import AnswerEvents, Pause
from dispatcher.operations.calls.attempt import Broken, LastEvent, OwnAttempts
from dispatcher.operations.calls.call import Call, accept_of
from dispatcher.ports import GateLink, WorkerClient


class Signal(Enum):
    LEFT = "the last caller left"
    LATE = "the deadline has passed"
    LOOK = "it is time to see whether the tenant still exists"


Item = Outcome | LastEvent | Broken | Signal
"""What the task reacts to."""


class FollowedCall:
    """A call that a task follows, until the call ends or this process lets it go. `unread`: no caller reads the
    events."""

    def __init__(self, call: Call, link: GateLink, workers: WorkerClient, tracing: Tracing, *, unread: bool) -> None:
        self.call = call
        self.begun = asyncio.Event()
        """Set when this process has begun an offer of the call."""
        self.ended = asyncio.Event()
        self.error: AnsweredError | None = None
        """The error with which the call ended; None if it is done, or if this process no longer holds it."""
        self._link = link
        self._callers = 1
        self._is_over = False
        self._inbox: asyncio.Queue[Item] = asyncio.Queue()
        self._events = AnswerEvents(streamed=call.request.stream, unread=unread)
        self._attempts = OwnAttempts(workers, call, self._events, self._inbox.put_nowait, tracing)
        self._first: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def attempt(self) -> int:
        """The highest attempt that was offered here; 0 if none was."""
        return self._attempts.highest

    @property
    def is_over(self) -> bool:
        """True if this task begins no further offer."""
        return self._is_over

    async def first(self) -> Outcome:
        """Return the gate's answer to the first command. Raises StoreUnavailable."""
        return await asyncio.shield(self._first)

    @property
    def answer(self) -> Collected:
        """The choices and counts of the attempt that ended the call; the whole answer, if `events` raised no error."""
        return self._events.collected

    def events(self) -> AsyncGenerator[WorkEvent, None]:
        """Yield the events of the answer, for one reader. Raises the error with which the call ends.

        If the call is not streamed, a new attempt may follow tokens of a lost one. It begins with another `Started`.
        """
        return self._events.read()

    async def next_event(self, timeout_s: float) -> WorkEvent | Pause:
        """Return the reader's next event, the end, or WAITING after `timeout_s`. Raises the same errors as `events`."""
        return await self._events.next(timeout_s)

    def join(self) -> bool:
        """Add a caller that waits for the end and does not read the events. Return False if the call is over."""
        self._callers += not self._is_over
        return not self._is_over

    async def hold_again(self) -> bool:
        """Become the holder of a durable call again, because the gate may have launched the call meanwhile.

        Return False if this task is ending, so that it begins no further offer.
        """
        if not self._is_over:
            outcome = await self._link.do(accept_of(self.call, self._link, self._link.process))
            if isinstance(outcome, Offer):
                self._inbox.put_nowait(outcome)
        return not self._is_over

    def leave(self, *, reader: bool = False) -> None:
        """Remove a caller. Each caller must leave once, even after the end. `reader`: it reads the events."""
        self._callers -= 1
        if reader or not self._callers:
            self._events.discard()
        if not self._callers:
            self._inbox.put_nowait(Signal.LEFT)
