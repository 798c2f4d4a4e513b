"""The index of the two-clock order: three sorted lists of (clock, arrival, queue).

`_ready` holds the waiting queues of tenants in profile, `_surplus` all other waiting queues, both by vft. `_later`
holds the queues of `_surplus` whose tenant has a guarantee a second time, by tat, until the guarantee covers them
again.

Invariant: every queue with a waiting call has exactly one entry in `_ready` or `_surplus`, and one in `_later` if its
tenant has a guarantee that does not cover it now.
"""

from __future__ import annotations

from math import inf

from dispatcher.policies.orders.queues import TenantQueue
from dispatcher.policies.orders.sorted_entries import SortedEntries


class TwoClocksIndex:
    """`guarantees` False: no tenant is ever in profile (start-time fair queueing)."""

    def __init__(self, *, guarantees: bool = True) -> None:
        self._guarantees = guarantees
        self._ready = SortedEntries()
        self._surplus = SortedEntries()
        self._later = SortedEntries()

    def place(self, queue: TenantQueue, now: float) -> None:
        tenant, arrival = queue.tenant, queue.head().arrival
        tat, vft = tenant.clocks
        entry = (vft, arrival, queue)
        if not tenant.rate_per_s or not self._guarantees:
            queue.move((self._surplus, entry))
        elif tat <= now:
            queue.move((self._ready, entry))
        else:
            queue.move((self._surplus, entry), (self._later, (tat, arrival, queue)))

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        later = self._later.first
        if later is not None and later[0] <= now:
            self._fill_buckets(now)
        ready, surplus = self._ready.first, self._surplus.first
        if ready is None:
            return (None, inf) if surplus is None else (surplus[2], surplus[0])
        return ready[2], ready[0] if surplus is None or ready[0] < surplus[0] else surplus[0]

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        return self.due(now, virtual_time)[0]

    def guaranteed(self, now: float) -> TenantQueue | None:
        self._fill_buckets(now)
        return self._ready.first[2] if self._ready.first else None

    def lowest_vft(self) -> float:
        return min(entries.first[0] if entries.first else inf for entries in (self._ready, self._surplus))

    def _fill_buckets(self, now: float) -> None:
        """Move the queues of tenants that are in profile again to `_ready`."""
        while (later := self._later.first) is not None and later[0] <= now:
            self.place(later[2], now)
