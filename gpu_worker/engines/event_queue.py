"""The events of one request, on their way from an engine to the caller of `generate`."""

from __future__ import annotations

import asyncio

from gpu_worker.engines.interface import EngineError, EngineEvent, Finished


class EventQueue(asyncio.Queue[EngineEvent | EngineError]):
    """Iteration waits for each event, ends after Finished, and raises an EngineError that is in the queue."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    def __aiter__(self) -> EventQueue:
        return self

    async def __anext__(self) -> EngineEvent:
        if self._ended:
            raise StopAsyncIteration
        event = await self.get()
        if isinstance(event, EngineError):
            raise event
        self._ended = isinstance(event, Finished)
        return event
