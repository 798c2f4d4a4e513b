"""Event loops in virtual time: the clock jumps to the next timer, so that hours of waiting take no time.

An async test that is marked `virtual_time` runs on a VirtualTimeLoop.

VirtualTimeLoop  its selector jumps where a real loop would sleep. Real events (a thread that reports, a socket) are
                 still seen; if no timer is set, the loop waits for them like any other
StormLoop        no selector and no threads. A storm spends half of its time in the loop, so this one does no more than
                 asyncio's contract asks for. Callbacks that are ready run in the order in which they were added; timers
                 in the order of their time, then of their making
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from math import inf
from typing import Any, TypeVar

import pytest
import uvloop

from tests.support.world.network import at_home

T = TypeVar("T")
Callback = Callable[..., Any]
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

    def call_soon(self, callback: Callback, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(at_home(callback, context), *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, at_home(callback, context), *args, context=context)

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
    if item.get_closest_marker("both_loops"):
        return {"real": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"real": asyncio.new_event_loop}


class Handle:
    """asyncio.Handle and asyncio.TimerHandle: what tasks, futures and timeouts use of them."""

    __slots__ = ("_when", "args", "callback", "context")

    def __init__(self, callback: Callback | None, args: tuple[Any, ...], context: Context, when: float) -> None:
        self.callback, self.args, self.context, self._when = callback, args, context, when

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._when


class StormLoop(asyncio.BaseEventLoop):
    """Raises RuntimeError where every task waits and no timer is set: nothing could ever happen."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START
        self._stopping = False
        self._until = inf
        self._queue: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._made = 0
        """Timers so far: equal times run in this order."""

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: Context | None = None
    ) -> Handle:
        context = context or copy_context()
        handle = Handle(at_home(callback, context), args, context, 0.0)
        self._queue.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> Handle:
        context = context or copy_context()
        handle = Handle(at_home(callback, context), args, context, when)
        self._made += 1
        heappush(self._timers, (when, self._made, handle))
        return handle

    def run_to(self, until: float) -> None:
        """Run everything that is due by `until`, each at its own time."""
        self._until = until
        try:
            self.run_forever()
        finally:
            self._until = inf
        self._now = max(self._now, until)

    def _run_once(self) -> None:
        """Run callbacks until `stop`."""
        queue, timers = self._queue, self._timers
        while not self._stopping:
            if not queue and not self._jump():
                return
            while timers and timers[0][0] <= self._now:
                queue.append(heappop(timers)[2])
            for _ in range(len(queue)):
                handle = queue.popleft()
                if (callback := handle.callback) is not None:
                    try:
                        handle.context.run(callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"message": f"exception in {callback!r}", "exception": error})

    def _jump(self) -> bool:
        """Set the clock to the next timer. False: it is not due in this run, and the loop stops."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heappop(timers)
        due = timers[0][0] if timers else inf
        if due > self._until:
            self.stop()
            return False
        if due == inf:
            raise RuntimeError("every task waits, and no timer is set")
        self._now = max(self._now, due)
        return True
