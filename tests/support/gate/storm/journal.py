"""A worker's outbox on a simulated disk, which survives the worker's process."""

from __future__ import annotations

from pathlib import Path

from dispatcher.model.commands import End
from gpu_worker.service.executions.outbox_journal import AttemptReport, Journal


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
