"""Bounds how long a caller waits for the store. (The link bounds its wait for the log: service/link/pending.py.)

The stores repeat a request for several seconds, which is right for the gate's own work. A caller learns sooner that the
store is away. A write that is cut off may still be applied, as after any other StoreUnavailable.

A store that is slow is not away: in a flood of 300 requests the last one may wait for seconds behind the others. So a
request goes on while others are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dispatcher.model.errors import StoreUnavailable

STORE_PATIENCE_S = 1.5
"""The time without any answer after which the store is away."""
COLD_PATIENCE_S = 6.0
"""The same until the store has answered this process once: it makes connections, and a new sandbox of Lambda is slow.
Also the longest time of one request, however many others are answered."""

T = TypeVar("T")


class StorePatience:
    """A process's patience with its store. `seconds`: without an answer, from the next request on."""

    def __init__(self) -> None:
        self.seconds = COLD_PATIENCE_S
        self._answered: tuple[asyncio.AbstractEventLoop | None, float] = (None, 0.0)
        """The event loop of the last answer, and its time then."""

    async def in_time(self, request: Awaitable[T]) -> T:
        """Return the result of a request to the store. Raises StoreUnavailable if the store has answered this process
        nothing for `seconds` since the request began, or not this request for COLD_PATIENCE_S."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                watch = _Watch(self, loop, limit)
                try:
                    result = await request
                finally:
                    watch.timer.cancel()
        except TimeoutError:
            raise StoreUnavailable("The store does not answer.") from None
        self.seconds, self._answered = STORE_PATIENCE_S, (loop, loop.time())
        return result

    def ends_at(self, loop: asyncio.AbstractEventLoop, began: float) -> float:
        """Return when to give up a request that began then, if the store answers no other one until then."""
        answered_in, answered_at = self._answered
        since = answered_at if answered_in is loop and answered_at > began else began
        return min(since + self.seconds, began + COLD_PATIENCE_S)


class _Watch:
    """Ends one request when the patience with it is over."""

    def __init__(self, patience: StorePatience, loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        self._patience, self._loop, self._limit, self._began = patience, loop, limit, loop.time()
        self.timer = loop.call_at(patience.ends_at(loop, self._began), self._look)

    def _look(self) -> None:
        ends_at, now = self._patience.ends_at(self._loop, self._began), self._loop.time()
        if ends_at > now:
            self.timer = self._loop.call_at(ends_at, self._look)
        else:
            self._limit.reschedule(now)


_OF_THIS_PROCESS = StorePatience()
in_time = _OF_THIS_PROCESS.in_time
