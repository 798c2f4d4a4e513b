"""An event loop in virtual time: its clock jumps to the next timer, so that hours of waiting take no time.

An async test that is marked `virtual_time` runs on such a loop.

The selector jumps where a real loop would sleep. Real events (a thread that reports, a socket) are still seen; if no
timer is set, the loop waits for them like any other.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
START = 1_000_000.0
"""The loop's time at its start, in seconds. It is not 0, because production code takes it for a wall clock and computes
times before now (since when a bucket fills), which are after the epoch on a wall clock."""

Ready = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.until = inf
        self.next_due = inf
        """The time of the loop's next timer, as of its last select."""
        self.stop: Any = None

    def select(self, timeout: float | None = None) -> Ready:
        """Jump instead of sleeping. `timeout`: seconds that the loop would sleep; None: without end; 0: not at all."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        due = inf if timeout is None else self.now + timeout
        self.next_due = due
        if due > self.until:
            self.stop()
            return []
        if due == inf:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now = due
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.stop = self.stop

    def time(self) -> float:
        return self._jumping.now

    def run_to(self, until: float) -> None:
        """Run everything that is due by `until`, each at its own time. Only for a loop that nothing else runs.

        Raises ValueError for a time that is not finite.
        """
        if not until < inf:
            raise ValueError(f"a loop runs to a finite time, not {until!r}")
        self._jumping.until = until
        try:
            self.run_forever()
        finally:
            self._jumping.until = inf
        self._jumping.now = max(self._jumping.now, until)

    def next_due(self) -> float:
        """Return the time of the next timer, as of the last `run_to`; infinity if there is none."""
        return self._jumping.next_due


class LoopClock:
    """ports.Clock over the running loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give pytest-asyncio the loop of a test."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}
