"""A process's clock: wrong by some seconds, and set forward or backward while it runs. Monotonic time goes on steadily,
or stands still while the machine is suspended."""

from __future__ import annotations

import asyncio


class SkewedClock:
    """ports.Clock. `skew_s`: by how much the wall clock is ahead."""

    def __init__(self) -> None:
        self.skew_s = 0.0
        self.monotonic = self._time = asyncio.get_running_loop().time
        self._lost_s = 0.0

    def now(self) -> float:
        return self._time() + self.skew_s

    def stand_still(self, seconds: float) -> None:
        """Let the monotonic clock miss so many seconds."""
        self._lost_s += seconds
        lost_s, time = self._lost_s, self._time
        self.monotonic = lambda: time() - lost_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class CountingIds:
    """ports.Ids that differ between processes and are the same in each run."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0

    def new(self) -> str:
        self._count += 1
        return f"{self._name}{self._count}".rjust(12, "0")

    def secret(self) -> str:
        return self.new() * 4
