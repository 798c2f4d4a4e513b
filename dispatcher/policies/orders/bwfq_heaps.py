"""Which of the waiting tenants is due first: the heaps of the two-clock gate.

Three heaps of (key, arrival, tenant). `_ready` and `_surplus` share the waiting tenants between them by vft: those in
profile, and the rest. `_later` holds those of the surplus that have a guarantee, by tat, until it covers them again.

Invariant: every tenant that waits has exactly one live entry in one of the two vft heaps, and one in `_later` if its
bucket will fill. Entries are lazy: a tenant knows its live ones; others are dropped when they come up, or all at once
when they outnumber the rest.

The gate is made of this class rather than given one: a decision costs a few microseconds, and each call a tenth of one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from dispatcher.policies.orders.bwfq_queue import Entry, Tenant, Waiting

SLACK = 64
"""Dead entries kept in the heaps, beyond twice as many as live ones, before they are swept out."""
SWEEP_EVERY = 32
"""Queued arrivals between two looks at how many are dead: an arrival cannot make more than a few."""


class WaitingTenants:
    def __init__(self, now: float) -> None:
        self._now = now
        self._queues = 0
        self._ready: list[Entry] = []
        self._surplus: list[Entry] = []
        self._later: list[Entry] = []

    def _place(self, tenant: Tenant, head: Waiting) -> None:
        """A live entry for a tenant that waits, wherever its clocks put it now; earlier ones die."""
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
        """Those whose bucket has filled meanwhile are in profile."""
        due, now = self._later, self._now
        while due and due[0][0] <= now:
            tenant = due[0][2]
            if tenant.later_entry is heappop(due) and tenant.head is not None:
                self._place(tenant, tenant.head)

    def _sweep(self) -> None:
        """Rid the heaps of dead entries where these outnumber the live ones, at most two for each line."""
        if len(self._surplus) + len(self._ready) + len(self._later) <= 4 * self._queues + SLACK:
            return
        for heap in (self._ready, self._surplus):
            heap[:] = [entry for entry in heap if entry[2].entry is entry]
            heapify(heap)
        self._later[:] = [entry for entry in self._later if entry[2].later_entry is entry]
        heapify(self._later)
