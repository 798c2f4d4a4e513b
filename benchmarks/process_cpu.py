"""The CPU time of another process."""

from __future__ import annotations

import time


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of all its threads, also of those that have ended, to the nanosecond. Linux only.

    psutil's CPU times are samples of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns
