"""The events of one answer, between the task of its call and the caller that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import WorkEvent

EVENTS_AHEAD_MAX = 64
"""Most events that are read from the worker before the caller reads them."""


class AnswerEvents:
    """A bounded queue for one reader. Without a reader (`discard`) it keeps nothing and holds nothing up."""

    def __init__(self, *, unread: bool) -> None:
        self.unread = unread
        self._events: asyncio.Queue[WorkEvent | None] = asyncio.Queue()
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
        self._events.put_nowait(None)

    def discard(self) -> None:
        """The reader has left."""
        self.unread = True
        self._room.set()

    async def read(self) -> AsyncGenerator[WorkEvent, None]:
        """Yield the events. Raises the error with which the call ends."""
        while (event := await self._events.get()) is not None:
            self._room.set()
            yield event
        if self._error is not None:
            raise self._error
