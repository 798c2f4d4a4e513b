"""An event loop of virtual time only: no selector, no threads. A storm spends half of its time in the loop, so this one
does no more than asyncio's contract asks for.

Callbacks that are ready run in the order in which they were added; timers in the order of their time, then of their
making. Where no callback is ready, the clock jumps to the next timer that is not cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from math import inf
from typing import Any

from tests.support.virtual_time import START

Callback = Callable[..., Any]


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
        handle = Handle(callback, args, copy_context() if context is None else context, 0.0)
        self._queue.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context, when)
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
