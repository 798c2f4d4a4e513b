"""Virtual Clock: a tenant's theoretical arrival time alone decides, for its guarantee and for the surplus.

Source: Zhang, Virtual Clock (SIGCOMM 1990), with the bucket of the generic cell rate algorithm (ITU-T I.371), so that
it is the first of the gate's two clocks (clocks.py) and nothing else:

    order          the waiting tenant with the lowest tat, ties by the arrival of the oldest request
    a dispatch     tat = max(tat, now - burst / rate) + cost / rate, whether in profile or not
    settlement     tat += (true - estimate) / the rate recorded at the dispatch
    `+cap`         the same, but tat never more than DEBT_MAX_S ahead of now after a dispatch

Units: cost in service units, rate in service units a second, burst in service units, tat in seconds; a weight is not
used. Deviations: the source stamps a request as it arrives and has no bucket; here tat moves at the dispatch, as the
gate's does, so what waits can be cancelled and corrected. A tenant without a rate has no clock: it goes after all that
have one, first come, first served among its like.

For comparison, not for use. A tenant pays later for what it borrowed of an idle pool, for as long as it borrowed. With
the cap, tenants that are always at the cap take turns request by request, at any cost. If the guarantees exceed the
capacity, the deepest bucket takes everything. Work conserving. O(log waiting tenants) a decision, amortized; no tenant
is forgotten.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush
from math import fsum, inf

from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.policies.old_orders.interface import (
    Decision,
    Dispatched,
    Queued,
    checked_cost,
    checked_slots,
    held_already,
    later,
    not_running,
    registered,
)

DEBT_MAX_S = 5.0
"""How far ahead of now the capped variant lets a tenant's clock run."""

SLACK = 64
"""Dead entries kept in the heap, beyond twice as many as live ones, before they are swept out."""

Entry = tuple[float, int, "TenantQueue"]
"""tat (infinite without a rate), arrival of the oldest request, and its tenant's queue."""


class TenantQueue:
    """A tenant: its clock, and its requests that wait, by id, in order of arrival: (number of the arrival, cost)."""

    __slots__ = ("burst_s", "entry", "name", "rate_per_s", "tat", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tat = -inf
        self.rate_per_s = self.burst_s = 0.0
        self.waiting: dict[str, tuple[int, float]] = {}
        self.entry: Entry | None = None

    def take(self, share: Share) -> None:
        self.rate_per_s = share.rate_per_s
        self.burst_s = share.burst / share.rate_per_s if share.rate_per_s else 0.0
        if not share.rate_per_s:
            self.tat = -inf


class VirtualClock:
    """`lead_max` is taken as every order takes it, and not used. `debt_max_s` in seconds. Raises ValueError."""

    def __init__(self, slots: int, *, lead_max: float = LEAD_MAX, debt_max_s: float = inf) -> None:
        if not debt_max_s > 0:
            raise ValueError(f"debt_max_s must be a positive number of seconds, not {debt_max_s!r}")
        self._slots = checked_slots(slots)
        self._debt_max_s = debt_max_s
        self._now = -inf
        self._arrivals = 0
        self._settled = 0.0
        self._queues: dict[str, TenantQueue] = {}
        self._heap: list[Entry] = []
        self._waiting: dict[str, TenantQueue] = {}
        self._running: dict[str, Dispatched] = {}

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def reserved(self) -> float:
        return fsum(dispatched.cost for dispatched in self._running.values())

    @property
    def settled(self) -> float:
        return self._settled

    def waiting_of(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return 0 if queue is None else len(queue.waiting)

    def tat_of(self, tenant: str) -> float:
        """Its theoretical arrival time in seconds; of a tenant never seen, or without a rate, the distant past."""
        queue = self._queues.get(tenant)
        return -inf if queue is None else queue.tat

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        self._now = later(self._now, now)
        checked_cost(cost, "cost")
        if invocation_id in self._running or invocation_id in self._waiting:
            raise held_already(invocation_id)
        queue = self._queue(tenant)
        if len(self._running) < self._slots:
            return self._dispatch(queue, invocation_id, cost)
        self._arrivals += 1
        queue.waiting[invocation_id] = (self._arrivals, cost)
        self._waiting[invocation_id] = queue
        if queue.entry is None:
            self._place(queue)
        return Queued(tenant, invocation_id, len(queue.waiting))

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        self._now = later(self._now, now)
        checked_cost(true_cost, "true_cost")
        ended = self._running.pop(invocation_id, None)
        if ended is None:
            raise not_running(invocation_id)
        self._settled += true_cost
        queue = self._queues[ended.tenant]
        if true_cost != ended.cost and ended.rate_per_s and queue.rate_per_s:
            queue.tat += (true_cost - ended.cost) / ended.rate_per_s
            self._place(queue)
        return self._dispatch_next()

    def cancel(self, invocation_id: str, now: float) -> bool:
        self._now = later(self._now, now)
        queue = self._waiting.pop(invocation_id, None)
        if queue is None:
            return False
        del queue.waiting[invocation_id]
        self._place(queue)
        return True

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        self._now = later(self._now, now)
        self._slots = checked_slots(slots)
        return tuple(iter(self._dispatch_next, None))

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        self._now = later(self._now, now)
        queue = self._queue(tenant)
        queue.take(share)
        self._place(queue)

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        self._now = later(self._now, now)

    def _queue(self, tenant: str) -> TenantQueue:
        found = self._queues.get(tenant)
        if found is None:
            found = self._queues[tenant] = TenantQueue(tenant)
        return found

    def _place(self, queue: TenantQueue) -> None:
        """One live entry where something waits, wherever the clock stands now; earlier ones die."""
        if not queue.waiting:
            queue.entry = None
            return
        arrival, _ = next(iter(queue.waiting.values()))
        queue.entry = (queue.tat if queue.rate_per_s else inf, arrival, queue)
        heappush(self._heap, queue.entry)
        if len(self._heap) > 2 * len(self._waiting) + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].entry is entry]
            heapify(self._heap)

    def _dispatch_next(self) -> Dispatched | None:
        """The one due first into a free slot; None where either is missing."""
        if not self._waiting or len(self._running) >= self._slots:
            return None
        entry = heappop(self._heap)
        while entry[2].entry is not entry:
            entry = heappop(self._heap)
        queue = entry[2]
        invocation_id = next(iter(queue.waiting))
        _, cost = queue.waiting.pop(invocation_id)
        del self._waiting[invocation_id]
        dispatched = self._dispatch(queue, invocation_id, cost)
        self._place(queue)
        return dispatched

    def _dispatch(self, queue: TenantQueue, invocation_id: str, cost: float) -> Dispatched:
        in_profile, rate, now = False, queue.rate_per_s, self._now
        if rate:
            in_profile = queue.tat <= now
            queue.tat = min(max(queue.tat, now - queue.burst_s) + cost / rate, now + self._debt_max_s)
        dispatched = Dispatched(queue.name, invocation_id, cost, in_profile, rate)
        self._running[invocation_id] = dispatched
        return dispatched


registered("virtual-clock")(VirtualClock)
registered("virtual-clock+cap")(partial(VirtualClock, debt_max_s=DEBT_MAX_S))
