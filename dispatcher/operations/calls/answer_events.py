"""Passes the events of one answer from the task of its call to the caller that reads them.

Two attempts may generate different texts. So a streaming caller that has a token of an attempt can only get the rest of
that attempt's answer. A caller that has no token yet, or gets the answer as a whole, can get another attempt's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum

from dispatcher.model.answers import Collected
from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import Token, WorkEvent

EVENTS_AHEAD_MAX = 64
"""The most events that wait for the caller. While so many wait, no event is read from the worker."""


class Pause(Enum):
    """What the reader gets instead of an event."""

    WAITING = "no event came in time"
    END = "the answer is complete"


class AnswerEvents:
    """A bounded queue for one reader. Without a reader (`unread`, `discard`) it drops events and never blocks the task.

    `streamed`: the reader passes each token to its caller at once. Otherwise it passes `collected` on at the end.
    """

    def __init__(self, *, streamed: bool, unread: bool = False) -> None:
        self.collected = Collected()
        """The choices and the counts from the last attempt."""
        self.count = 0
        """The number of events from all attempts."""
        self._streamed = streamed
        self._unread = unread
        self._is_handed = False
        """True if the reader has a token of the last attempt."""
        self._events: asyncio.Queue[WorkEvent | Pause] = asyncio.Queue()
        self._error: AnsweredError | None = None
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return self._events.qsize()

    @property
    def is_full(self) -> bool:
        """Whether the next event must wait until the reader has taken one."""
        return len(self) >= EVENTS_AHEAD_MAX and not self._unread

    @property
    def is_partly_delivered(self) -> bool:
        """Whether the caller has a part of the last attempt's answer. Then it can only get the rest of that answer."""
        return self._streamed and self._is_handed and not self._unread

    def begin(self) -> None:
        """Forget what the last attempt delivered, because a new one begins."""
        self.collected, self._is_handed = Collected(), False
        while not self._events.empty():
            self._events.get_nowait()

    async def put(self, event: WorkEvent) -> None:
        """Wait until there is room, then add the event."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()
        self.put_now(event)

    def put_now(self, event: WorkEvent) -> None:
        self.count += 1
        self.collected.note(event)
        if not self._unread:
            self._events.put_nowait(event)

    def end(self, error: AnsweredError | None) -> None:
        """Add the end. After all events the reader gets the end, or `error` is raised."""
        self._error = error
        self._events.put_nowait(Pause.END)

    def discard(self) -> None:
        """Drop all events, because the reader has left."""
        self._unread = True
        self._room.set()

    async def next(self, timeout_s: float | None = None) -> WorkEvent | Pause:
        """Return the next event, the end, or WAITING after `timeout_s`. Raises the error with which the call ends."""
        if timeout_s is None or not self._events.empty():
            event = await self._events.get()
        else:
            try:
                async with asyncio.timeout(timeout_s):
                    event = await self._events.get()
            except TimeoutError:
                return Pause.WAITING
        self._room.set()
        self._is_handed = self._is_handed or isinstance(event, Token)
        if event is Pause.END and self._error is not None:
            raise self._error
        return event

    async def read(self) -> AsyncGenerator[WorkEvent, None]:
        """Yield the events. Raises the error with which the call ends."""
        while not isinstance(event := await self.next(), Pause):
            yield event
