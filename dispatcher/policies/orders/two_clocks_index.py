"""The index of the two-clock order: three heaps of (clock, arrival, queue).

`_ready` and `_surplus` share the waiting queues between them by vft: those of tenants in profile, and the rest.
`_later` holds those of the surplus with a guarantee, by tat, until the guarantee covers them again.

Invariant: every queue with a waiting call has exactly one live entry in one of the two vft heaps, and one in `_later`
if its tenant's bucket will fill. Entries are lazy: a queue knows its live ones; others are dropped when they come up,
or all at once when they outnumber the rest.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from dispatcher.policies.orders.queues import Entry, TenantQueue

SLACK = 64
"""Dead entries kept in the heaps, beyond four times as many as queues, before they are swept out."""


class TwoClocksIndex:
    """`guarantees` False: no tenant is ever in profile (start-time fair queueing)."""

    def __init__(self, *, guarantees: bool = True) -> None:
        self._guarantees = guarantees
        self._queues = 0
        self._ready: list[Entry] = []
        self._surplus: list[Entry] = []
        self._later: list[Entry] = []

    def place(self, queue: TenantQueue, now: float) -> None:
        tenant = queue.tenant
        tat, vft = tenant.clocks
        arrival = queue.head().arrival
        if queue.entry is None:
            self._queues += 1
        queue.entry = entry = (vft, arrival, queue)
        queue.later_entry = None
        if not tenant.rate_per_s or not self._guarantees:
            heappush(self._surplus, entry)
        elif tat <= now:
            heappush(self._ready, entry)
        else:
            heappush(self._surplus, entry)
            queue.later_entry = later = (tat, arrival, queue)
            heappush(self._later, later)
        if len(self._surplus) + len(self._ready) + len(self._later) > 4 * self._queues + SLACK:
            self._sweep()

    def drop(self, queue: TenantQueue) -> None:
        if queue.entry is not None:
            self._queues -= 1
        queue.entry = queue.later_entry = None

    def first(self, now: float) -> TenantQueue | None:
        return self.guaranteed(now) or (self._surplus[0][2] if _cleaned(self._surplus) else None)

    def guaranteed(self, now: float) -> TenantQueue | None:
        if self._later and self._later[0][0] <= now:
            self._fill_buckets(now)
        return self._ready[0][2] if _cleaned(self._ready) else None

    def lowest_vft(self) -> float:
        lowest = self._surplus[0][0] if _cleaned(self._surplus) else inf
        if _cleaned(self._ready):
            lowest = min(lowest, self._ready[0][0])
        return lowest

    def _fill_buckets(self, now: float) -> None:
        """Move queues of tenants with a bucket that has filled meanwhile to those in profile."""
        due = self._later
        while due and due[0][0] <= now:
            entry = heappop(due)
            if entry[2].later_entry is entry:
                self.place(entry[2], now)

    def _sweep(self) -> None:
        """Remove dead entries; each queue has at most two live ones."""
        for heap in (self._ready, self._surplus):
            heap[:] = [entry for entry in heap if entry[2].entry is entry]
            heapify(heap)
        self._later[:] = [entry for entry in self._later if entry[2].later_entry is entry]
        heapify(self._later)


def _cleaned(heap: list[Entry]) -> list[Entry]:
    """Drop dead entries from the head of the heap, and return it."""
    while heap and heap[0][2].entry is not heap[0]:
        heappop(heap)
    return heap
