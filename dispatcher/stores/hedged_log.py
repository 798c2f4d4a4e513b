"""Repeats slow appends with the same bytes, and slow reads, so that one slow reply does not delay a whole shard.

Both appends write the same bytes to the same position, and a position is written once. So the second append finds equal
bytes there, and succeeds too. Only a small part of the requests is repeated, and none while the store throttles,
because more load would make it slower.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED, Future
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from dispatcher.ports import Log

HEDGE_AFTER_S = 0.012
"""A request without an answer after this time is repeated. It is above the P90 of a DynamoDB put and below its P99."""
HEDGED_SHARE_MAX = 0.05
"""The part of the requests that may be repeated."""
HEDGES_SAVED_MAX = 5.0
"""After many requests without a repetition, so many requests in a row may be repeated."""

T = TypeVar("T")


class HedgedLog:
    """A dispatcher.ports.Log that repeats the slow requests of another one."""

    def __init__(self, log: Log, is_throttled: Callable[[], bool] = lambda: False) -> None:
        self.hedges = 0
        """The number of requests that were repeated."""
        self._log, self._is_throttled = log, is_throttled
        self._saved = HEDGES_SAVED_MAX
        self._late: set[Future[Any]] = set()

    async def append(self, position: int, entry: bytes) -> bytes:
        return await self._hedge_request(partial(self._log.append, position, entry))

    async def _hedge_request(self, request: Callable[[], Awaitable[T]]) -> T:
        self._saved = min(HEDGES_SAVED_MAX, self._saved + HEDGED_SHARE_MAX)
        tries = [self._begin(request)]
        try:
            await asyncio.wait(tries, timeout=HEDGE_AFTER_S)
            if tries[0].done():
                return tries[0].result()
            if self._may_hedge():
                self.hedges += 1
                self._saved -= 1
                tries.append(self._begin(request))
            return await _first_reply(tries)
        except asyncio.CancelledError:
            for task in tries:
                task.cancel()
            raise

    def _begin(self, request: Callable[[], Awaitable[T]]) -> Future[T]:
        task = asyncio.ensure_future(request())
        self._late.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: Future[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve the slower try's error, which has no meaning after the first reply

    def _may_hedge(self) -> bool:
        return self._saved >= 1 and not self._is_throttled()

    async def read(self, position: int, limit: int = 1000) -> Sequence[bytes]:
        return await self._hedge_request(partial(self._log.read, position, limit))

    async def last(self) -> tuple[int, bytes] | None:
        return await self._hedge_request(self._log.last)

    async def save_snapshot(self, position: int, nonce: str, state: bytes) -> None:
        await self._log.save_snapshot(position, nonce, state)

    async def load_snapshot(self) -> tuple[int, bytes] | None:
        return await self._log.load_snapshot()

    async def cut(self, position: int) -> None:
        await self._log.cut(position)


async def _first_reply(tries: list[Future[T]]) -> T:
    """Return the first reply. If all tries fail, raise the first try's error: a later one does not show its effect."""
    pending = set(tries)
    while True:
        done, pending = await asyncio.wait(pending, return_when=FIRST_COMPLETED)
        replies = [task for task in done if task.exception() is None]
        if replies or not pending:
            return (replies or tries)[0].result()
