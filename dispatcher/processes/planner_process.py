"""Runs the planner in a process of its own.

A thread is not enough: the planner is pure Python, and holds the interpreter's lock for milliseconds. Measured beside a
plan of 200 groups on two busy cores, a timer of 2 ms was late by 5.4 ms (P50) and 18 ms (P99) with a thread, and by 1.7
and 5.8 ms with a process. The process starts with the first plan, so a fleet of one model has none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

PARENT_CHECK_S = 1.0
NICENESS = 10


class PlannerProcess:
    """Calls functions of modules in one other process, one after the other."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result. If the process has died or the caller gives up, the next call starts another
        process. Raises what the function raises, and BrokenProcessPool."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (os.getpid(),))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        except (BrokenProcessPool, asyncio.CancelledError):
            self.stop()
            raise

    def stop(self) -> None:
        """End the process, also in the middle of its work."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(parent: int) -> None:
    """Let the gate's own processes go first, and end with the parent: after its last call, not at a Ctrl-C of the whole
    group, or soon after it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(0)
