"""The heaps of the two-clock gate, which find the waiting tenant that is due first.

Three heaps of (key, arrival, tenant). `_ready` and `_surplus` share the waiting tenants between them by vft: those in
profile, and the rest. `_later` holds those of the surplus that have a guarantee, by tat, until it covers them again.

Invariant: every tenant that waits has exactly one live entry in one of the two vft heaps, and one in `_later` if its
bucket will fill. Entries are lazy: a tenant knows its live ones; others are dropped when they come up, or all at once
when they outnumber the rest.

The gate inherits from this class to save calls: a decision takes a few microseconds, and a call a tenth of one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from dispatcher.policies.old_orders.bwfq_queue import Entry, Tenant, Waiting

SLACK = 64
"""Dead entries kept in the heaps, beyond twice as many as live ones, before they are swept out."""
SWEEP_EVERY = 32
"""Queued arrivals between two counts of the dead entries: an arrival makes only a few."""


class WaitingTenants:
    def __init__(self, now: float) -> None:
        self._now = now
        self._queues = 0
        self._ready: list[Entry] = []
        self._surplus: list[Entry] = []
        self._later: list[Entry] = []

    def _place(self, tenant: Tenant, head: Waiting) -> None:
        """Make the live entry of a waiting tenant from its present clocks. Its earlier entries are dead then."""
        entry = tenant.entry = (tenant.vft, head.arrival, tenant)
        tenant.later_entry = None
        if not tenant.rate_per_s:
            heappush(self._surplus, entry)
        elif tenant.tat <= self._now:
            heappush(self._ready, entry)
        else:
            heappush(self._surplus, entry)
            tenant.later_entry = (tenant.tat, head.arrival, tenant)
            heappush(self._later, tenant.later_entry)

    def _fill_buckets(self) -> None:
        """Move tenants with a bucket that has filled meanwhile to those in profile."""
        due, now = self._later, self._now
        while due and due[0][0] <= now:
            tenant = due[0][2]
            if tenant.later_entry is heappop(due) and tenant.head is not None:
                self._place(tenant, tenant.head)

    def _sweep(self) -> None:
        """Remove dead entries if they outnumber the live ones, of which each queue has at most two."""
        if len(self._surplus) + len(self._ready) + len(self._later) <= 4 * self._queues + SLACK:
            return
        for heap in (self._ready, self._surplus):
            heap[:] = [entry for entry in heap if entry[2].entry is entry]
            heapify(heap)
        self._later[:] = [entry for entry in self._later if entry[2].later_entry is entry]
        heapify(self._later)
