"""The store in memory. Its methods have the same outcomes as those of the real stores.

Every request to the table or to a log is applied atomically, also between threads (a snapshot is one request for each
part, and one for its manifest). A `StoreFaults` hook is called before and after. If it raises before, nothing is
written. If it raises after, the reply is lost. The results depend only on the calls, the clock and the hook.

`view` gives each simulated process its own faults and its own clock over the same data.
"""

from __future__ import annotations

import threading
from collections import Counter

from dispatcher.ports import Clock
from dispatcher.stores.limits import checked_shard
from dispatcher.stores.memory.log import LogData, MemoryLog
from dispatcher.stores.memory.requests import CountedRequests, StoreFaults
from dispatcher.stores.memory.table import ItemData, MemoryTable
from dispatcher.stores.records.record_store import RecordStore


class MemoryData:
    """The data that all views of one store share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.logs: dict[str, LogData] = {}
        self.items = ItemData()


class MemoryStore(RecordStore):
    """dispatcher.ports.Store."""

    def __init__(self, clock: Clock, faults: StoreFaults | None = None, data: MemoryData | None = None) -> None:
        self.data = data or MemoryData()
        self._requests = CountedRequests(self.data.lock, faults)
        self._clock = clock
        super().__init__(MemoryTable(self.data.items, self._requests, clock))

    def view(self, clock: Clock, faults: StoreFaults | None = None) -> MemoryStore:
        """Return a store over the same data, for another process with its own clock and faults."""
        return MemoryStore(clock, faults, self.data)

    @property
    def requests(self) -> Counter[str]:
        """The number of requests of this view so far, by operation."""
        return self._requests.counts

    @property
    def faults(self) -> StoreFaults | None:
        return self._requests.faults

    @faults.setter
    def faults(self, faults: StoreFaults | None) -> None:
        self._requests.faults = faults

    def log(self, shard: str) -> MemoryLog:
        with self.data.lock:
            data = self.data.logs.setdefault(checked_shard(shard), LogData(shard))
        return MemoryLog(data, self._requests, self._clock)

    async def close(self) -> None:
        return None
