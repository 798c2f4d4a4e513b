"""An index of waiting queues by one key: one heap with lazy entries."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

from dispatcher.policies.orders.queues import Call, Entry, TenantQueue

SLACK = 64
"""Dead entries kept in the heap, beyond twice as many as live ones, before they are swept out."""

Key = Callable[[Call], float]


class KeyedIndex:
    """Lowest key first, then the earliest arrival of a queue's head. `key` computes the key from the head."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[Entry] = []
        self._live = 0

    def place(self, queue: TenantQueue, now: float) -> None:
        head = queue.head()
        self._live += queue.entry is None
        queue.entry = entry = (self._key(head), head.arrival, queue)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].entry is entry]
            heapify(self._heap)

    def drop(self, queue: TenantQueue) -> None:
        self._live -= queue.entry is not None
        queue.entry = None

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        heap = self._heap
        while heap and (entry := heap[0])[2].entry is not entry:
            heappop(heap)
        return heap[0][2] if heap else None, inf

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        return self.due(now, virtual_time)[0]

    def guaranteed(self, now: float) -> TenantQueue | None:
        return None

    def lowest_vft(self) -> float:
        return inf
