"""Waits for a call of another task or for a time. It costs a third of an asyncio.Event in an asyncio.timeout."""

from __future__ import annotations

import asyncio


class Wakeup:
    """One task waits at a time. A `set` while none waits has no effect, so check the condition before each `wait`."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[bool] | None = None

    def set(self) -> None:
        """Wake up the task that waits."""
        self._wake(is_set=True)

    async def wait(self, seconds: float | None) -> bool:
        """Wait for a `set`. Return False if none came within the time. None: no limit."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        self._waiting = waiting
        timer = None if seconds is None else loop.call_later(seconds, self._expire)
        try:
            return await waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def _expire(self) -> None:
        self._wake(is_set=False)

    def _wake(self, *, is_set: bool) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(is_set)
