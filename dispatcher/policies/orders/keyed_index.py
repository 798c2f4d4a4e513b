"""An index of waiting queues by one key."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from dispatcher.policies.orders.queues import Call, TenantQueue
from dispatcher.policies.orders.sorted_entries import SortedEntries

Key = Callable[[Call], float]


class KeyedIndex:
    """Lowest key first, then the earliest arrival of a queue's head. `key` computes the key from the head."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._entries = SortedEntries()

    def place(self, queue: TenantQueue, now: float) -> None:
        head = queue.head()
        queue.move((self._entries, (self._key(head), head.arrival, queue)))

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        return self.direct(now, virtual_time), inf

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        return self._entries.first[2] if self._entries.first else None

    def first_in_profile(self, now: float) -> TenantQueue | None:
        return None

    def lowest_vft(self) -> float:
        return inf
