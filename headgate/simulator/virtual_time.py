"""An event loop whose clock jumps to the next thing that is due: hours of waiting take no time, and nothing races.

The jump is made where a real loop would sleep, in its selector. Real events (a thread that reports, a socket) are still
seen; where nothing is due ever, the loop waits for them as any other.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")
START = 1_000_000.0
"""Where the loop's clock begins, in seconds. Not at 0: on wall clocks, for which production code takes it, all that is
reckoned backward from now (a bucket that has been filling) is after the epoch."""

Ready = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.until = inf
        self.next_due = inf
        """When the loop's next timer is due, as it last said."""
        self.stop: Any = None

    def select(self, timeout: float | None = None) -> Ready:
        """`timeout`: how long the loop would sleep; None for ever, 0 not at all."""
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
        """Run all that is due by `until`, at its own time, until nothing is left to do then. For a loop that others
        step: nothing else runs it. Raises ValueError for a time that is not finite."""
        if not until < inf:
            raise ValueError(f"a loop runs to a finite time, not {until!r}")
        self._jumping.until = until
        try:
            self.run_forever()
        finally:
            self._jumping.until = inf
        self._jumping.now = max(self._jumping.now, until)

    def next_due(self) -> float:
        """When its next timer is due, as of the last `run_to`; infinity where there is none."""
        return self._jumping.next_due


class LoopClock:
    """ports.Clock over the running loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
