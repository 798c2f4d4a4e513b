"""The machine of a process in a storm: its clock, its ids, and the disk with a worker's outbox.

The clock is wrong by some seconds, and set forward or backward while the process runs. Monotonic time goes on steadily,
or stands still while the machine is suspended. The disk survives the process.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from dispatcher.model.commands import End
from gpu_worker.service.executions.outbox_journal import AttemptReport, Journal


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


class Disk:
    """What the processes of one worker have written."""

    def __init__(self) -> None:
        self.reports: dict[int, AttemptReport] = {}
        self.ends: set[tuple[str, int]] = set()
        """The attempts with an end that was ever written."""
        self.count = 0


class MemoryJournal(Journal):
    def __init__(self, disk: Disk) -> None:
        super().__init__(Path("/nowhere"), "")
        self._disk = disk

    def recover(self) -> dict[int, AttemptReport]:
        return dict(self._disk.reports)

    def put(self, report: AttemptReport) -> int:
        self._disk.count += 1
        self._disk.reports[self._disk.count] = report
        if isinstance(report, End):
            self._disk.ends.add((report.id, report.attempt))
        return self._disk.count

    def acknowledge(self, number: int) -> None:
        self._disk.reports.pop(number, None)

    async def sync(self) -> None:
        return None

    def close(self) -> None:
        return None
