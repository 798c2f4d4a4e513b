"""The index of the two-clock order: three heaps of (clock, arrival, queue).

`_ready` holds the waiting queues of tenants in profile, `_surplus` all other waiting queues, both by vft. `_later`
holds the queues of `_surplus` whose tenant has a guarantee a second time, by tat, until the guarantee covers them
again.

Invariant: every queue with a waiting call has exactly one live entry in `_ready` or `_surplus`, and one in `_later` if
its tenant has a guarantee that does not cover it now. Entries are lazy: a queue knows its live ones. A dead entry is
dropped when it gets to the head of its heap, or by a sweep when there are too many.

A sweep stops nothing, however long the heaps are. It puts the heaps aside as `_old`, and with each later call of
`place` it moves SWEPT entries from their ends to new heaps, without the dead ones. (A heap without its last entry is
a heap.) Before a head is read, `_lift` moves what is before it in an old heap.

Every dispatch and every settlement runs this code. So `place` and `due` are longer than usual, and call little but the
heap's own functions.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from math import inf

from dispatcher.policies.orders.queues import Entry, TenantQueue

SLACK = 64
"""The heaps may hold four entries for each queue, and SLACK more. A sweep begins at three quarters of it."""
SWEPT = 16


class TwoClocksIndex:
    """`guarantees` False: no tenant is ever in profile (start-time fair queueing)."""

    def __init__(self, *, guarantees: bool = True) -> None:
        self._guarantees = guarantees
        self._queues = 0
        self._ready: list[Entry] = []
        self._surplus: list[Entry] = []
        self._later: list[Entry] = []
        self._old: list[tuple[list[Entry], list[Entry], bool]] = []
        """During a sweep: an old heap, the heap in its place, and whether it is that of `_later`."""
        self._places_left = SLACK // 2
        """Calls of `place` until the sizes of the heaps are next checked. Each call adds at most two entries."""

    def place(self, queue: TenantQueue, now: float) -> None:
        tenant = queue.tenant
        tat, vft = tenant.clocks
        first = queue.calls[0]
        arrival = first[1] if first[2].queued else queue.head().arrival
        old = queue.entry
        queue.entry = entry = (vft, arrival, queue)
        if old is None:
            self._queues += 1
        heap = self._surplus
        if not tenant.rate_per_s or not self._guarantees:
            queue.later_entry = None
        elif tat <= now:
            heap = self._ready
            queue.later_entry = None
        elif queue.later_entry is None or queue.later_entry[0] != tat:
            queue.later_entry = later = (tat, arrival, queue)
            heappush(self._later, later)
        if heap and heap[0] is old:
            heapreplace(heap, entry)  # the queue was at the head: one move in the heap instead of two
        else:
            heappush(heap, entry)
        self._places_left -= 1
        if self._places_left < 0:
            self._sweep()

    def drop(self, queue: TenantQueue) -> None:
        if queue.entry is not None:
            self._queues -= 1
        queue.entry = queue.later_entry = None

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        if self._old:
            self._lift()
        if self._later and self._later[0][0] <= now:
            self._fill_buckets(now)
        ready, surplus = self._ready, self._surplus
        while ready and (entry := ready[0])[2].entry is not entry:
            heappop(ready)
        while surplus and (entry := surplus[0])[2].entry is not entry:
            heappop(surplus)
        if not ready:
            return (surplus[0][2], surplus[0][0]) if surplus else (None, inf)
        vft, _, queue = ready[0]
        return queue, surplus[0][0] if surplus and surplus[0][0] < vft else vft

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        return self.due(now, virtual_time)[0]

    def guaranteed(self, now: float) -> TenantQueue | None:
        if self._old:
            self._lift()
        if self._later and self._later[0][0] <= now:
            self._fill_buckets(now)
        return self._ready[0][2] if _cleaned(self._ready) else None

    def lowest_vft(self) -> float:
        if self._old:
            self._lift()
        return min(heap[0][0] if _cleaned(heap) else inf for heap in (self._ready, self._surplus))

    def _fill_buckets(self, now: float) -> None:
        """Move the queues of tenants that are in profile again to `_ready`."""
        while self._later and self._later[0][0] <= now:
            entry = heappop(self._later)
            if entry[2].later_entry is entry:
                self.place(entry[2], now)
            if self._old:
                self._lift()

    def _sweep(self) -> None:
        """Go on with a sweep, or begin one if there are too many dead entries; each queue has at most two live ones."""
        if self._old:
            self._move()
            return
        most = 4 * self._queues + SLACK
        if len(self) > 3 * most // 4:
            olds = self._ready, self._surplus, self._later
            self._ready, self._surplus, self._later = [], [], []
            news = self._ready, self._surplus, self._later
            self._old = list(zip(olds, news, (False, False, True), strict=True))
        else:
            self._places_left = (most - len(self)) // 2 - 1

    def _move(self) -> None:
        """Move the last SWEPT entries of the old heaps, without the dead ones."""
        for _ in range(SWEPT):
            old, new, is_later = self._old[-1]
            if old:
                entry = old.pop()
                if _is_live(entry, is_later):
                    heappush(new, entry)
            else:
                self._old.pop()
                if not self._old:
                    break

    def _lift(self) -> None:
        """Move the entries of the old heaps that come before the first live ones of the new heaps."""
        for old, new, is_later in self._old:
            while new and not _is_live(new[0], is_later):
                heappop(new)
            while old and (not new or old[0] < new[0]):
                entry = heappop(old)
                if _is_live(entry, is_later):
                    heappush(new, entry)

    def __len__(self) -> int:
        """Return the number of entries, dead ones included."""
        return len(self._ready) + len(self._surplus) + len(self._later) + sum(len(old) for old, _, _ in self._old)


def _is_live(entry: Entry, is_later: bool) -> bool:
    queue = entry[2]
    return (queue.later_entry if is_later else queue.entry) is entry


def _cleaned(heap: list[Entry]) -> list[Entry]:
    """Drop dead entries from the head of the heap, and return it."""
    while heap and heap[0][2].entry is not heap[0]:
        heappop(heap)
    return heap
