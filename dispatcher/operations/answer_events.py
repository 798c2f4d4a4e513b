"""The events of one answer, between the task of its call and the caller that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum

from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import WorkEvent

EVENTS_AHEAD_MAX = 64
"""Most events that are read from the worker before the caller reads them."""


class Pause(Enum):
    """What is read where there is no event."""

    WAITING = "no event came in time"
    END = "the answer is complete"


class AnswerEvents:
    """A bounded queue for one reader. Without a reader (`discard`) it keeps nothing and holds nothing up."""

    def __init__(self, *, unread: bool) -> None:
        self.unread = unread
        self._events: asyncio.Queue[WorkEvent | Pause] = asyncio.Queue()
        self._error: AnsweredError | None = None
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return self._events.qsize()

    async def put(self, event: WorkEvent) -> None:
        """Wait until there is room, then add the event."""
        while len(self) >= EVENTS_AHEAD_MAX and not self.unread:
            self._room.clear()
            await self._room.wait()
        self.put_now(event)

    def put_now(self, event: WorkEvent) -> None:
        if not self.unread:
            self._events.put_nowait(event)

    def end(self, error: AnsweredError | None) -> None:
        """Add the end. With an error the reader gets that, after all events before it."""
        self._error = error
        self._events.put_nowait(Pause.END)

    def discard(self) -> None:
        """The reader has left."""
        self.unread = True
        self._room.set()

    async def next(self, timeout_s: float | None = None) -> WorkEvent | Pause:
        """Return the next event, the end, or WAITING after `timeout_s`. Raises the error with which the call ends."""
        try:
            async with asyncio.timeout(timeout_s if self._events.empty() else None):
                event = await self._events.get()
        except TimeoutError:
            return Pause.WAITING
        self._room.set()
        if event is Pause.END and self._error is not None:
            raise self._error
        return event

    async def read(self) -> AsyncGenerator[WorkEvent, None]:
        """Yield the events. Raises the error with which the call ends."""
        while not isinstance(event := await self.next(), Pause):
            yield event
