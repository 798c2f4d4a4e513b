"""Reports that the data folder's disk is nearly full, and that it has space again.

On a full disk SQLite refuses every write, so the gate refuses every request. The logs of the processes, which would
show the reason, are on the same disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from dispatcher.ports import Clock

FREE_MIN_BYTES = 64 * 1024 * 1024
CHECK_EVERY_S = 10.0


class DiskWatch:
    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder, self._report = folder, report
        self._is_low = False

    async def run(self, clock: Clock) -> None:
        """Check until cancelled."""
        while True:
            self.check(shutil.disk_usage(self._folder).free)
            await clock.sleep(CHECK_EVERY_S)

    def check(self, free_bytes: int) -> None:
        """Report a change between a disk with space and one that is nearly full."""
        was_low, self._is_low = self._is_low, free_bytes < FREE_MIN_BYTES
        if self._is_low and not was_low:
            self._report(
                f"the disk of {self._folder} has {free_bytes / 2**20:.0f} MiB left: when it is full, every request is "
                "refused until there is space again; no restart is needed then"
            )
        elif was_low and not self._is_low:
            self._report(f"the disk of {self._folder} has space again")
