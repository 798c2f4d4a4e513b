"""BWFQ with two clocks, in memory: the gate's default order.

Source: BWFQ (2025), section 3.1, in the form of clocks.py, which has the arithmetic, the units and the reasons. The
same moves are repeated here on plain attributes, because a decision is made for each request; a test compares them
with clocks.debit, lift and settlement.

    order         with a free slot: waiting tenants in profile (tat <= now) first, else all waiting tenants (surplus);
                  within either the lowest vft first, ties by the arrival of the oldest waiting request
    V             max(V, min(start stamp of the dispatched tenant, vft of the waiting tenants)) at every dispatch,
                  max(V, vft of the settled tenant) if the settlement leaves a slot free
    in a tenant   first come, first served: a tenant's requests wait in its own queue, and each is charged when it is
                  dispatched, so the k-th request of a flood waits for the k-1 before it
    overbooked    effective rate = rate x rate_scale(sum of the rates of tenants that wait or run, capacity)

Invariants: no more requests run than there are slots (except after a reduction of the slots); a slot is free only while
no request waits. O(log waiting tenants) a decision, amortized (bwfq_heaps.py).

The second rule for V does at once what that tenant's next dispatch would do: while a slot is free, its lead delays no
other tenant. It is start-time fair queueing's rule for the end of a busy period, for each slot. Without it V would not
move under tenants that come only once, and all of them would have to be kept.
"""

from __future__ import annotations

from heapq import heappop, heapreplace
from math import fsum, inf

from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.policies.old_orders.bwfq_heaps import SWEEP_EVERY
from dispatcher.policies.old_orders.bwfq_queue import Tenant, Waiting
from dispatcher.policies.old_orders.bwfq_tenants import RememberedTenants
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

_DEFAULT_SHARE = Share()
_new = tuple.__new__  # a third of the time of calling the class; the fields are those of the named tuple, in order


@registered("bwfq")
class TwoClocks(RememberedTenants):
    """`lead_max`: how far a tenant's vft may run ahead of V, service units a weight of 1. Raises ValueError."""

    def __init__(self, slots: int, *, lead_max: float = LEAD_MAX, forget: bool = True) -> None:
        if not lead_max > 0:
            raise ValueError(f"lead_max must be a positive number, not {lead_max!r}")
        super().__init__(forget=forget)
        self._slots = checked_slots(slots)
        self._free = self._slots
        self._lead_max = lead_max
        self._settled = 0.0
        self._arrivals = 0
        self._held: dict[str, Waiting | Dispatched] = {}

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def running(self) -> int:
        return self._slots - self._free

    @property
    def waiting(self) -> int:
        return len(self._held) - self._slots + self._free

    @property
    def reserved(self) -> float:
        return fsum(held.cost for held in self._held.values() if type(held) is Dispatched)

    @property
    def settled(self) -> float:
        return self._settled

    @property
    def virtual_time(self) -> float:
        return self._virtual_time

    def waiting_of(self, tenant: str) -> int:
        found = self._tenants.get(tenant)
        return 0 if found is None else found.waiting

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        if not self._now <= now < inf:
            now = later(self._now, now)
        self._now = now
        if not 0.0 <= cost < inf:
            checked_cost(cost, "cost")
        if invocation_id in self._held:
            raise held_already(invocation_id)
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = Tenant(tenant, self._share.get(tenant, _DEFAULT_SHARE))
            self._check_idle()
        tail = found.tail
        if tail is None:
            virtual_time = self._virtual_time
            if found.vft < virtual_time:  # clocks.lift: nothing of it waits
                found.vft = virtual_time
            elif found.vft > virtual_time + self._lead_max:
                found.vft = virtual_time + self._lead_max
            if found.rate_per_s and not found.running:
                self._activate(found)
        if self._free > 0:
            self._free -= 1
            in_profile = found.rate_per_s > 0.0 and found.tat <= now
            return self._dispatch(found, invocation_id, cost, in_profile, inf)
        self._arrivals = arrival = self._arrivals + 1
        waiting = Waiting(invocation_id, cost, arrival, found, tail)
        self._held[invocation_id] = found.tail = waiting
        found.waiting += 1
        if tail is None:
            found.head = waiting
            self._queues += 1
            self._place(found, waiting)
        else:
            tail.after = waiting
        if not arrival % SWEEP_EVERY:
            self._sweep()
        return _new(Queued, (tenant, invocation_id, found.waiting))

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        if not self._now <= now < inf:
            now = later(self._now, now)
        self._now = now
        if not 0.0 <= true_cost < inf:
            checked_cost(true_cost, "true_cost")
        dispatched = self._held.get(invocation_id)
        if type(dispatched) is not Dispatched:
            raise not_running(invocation_id)
        del self._held[invocation_id]
        tenant = self._tenants[dispatched[0]]
        self._settled += true_cost
        if true_cost != dispatched[2]:
            error = true_cost - dispatched.cost  # clocks.settlement
            tenant.vft += error / dispatched.weight
            if dispatched.in_profile:
                tenant.tat += error / dispatched.rate_per_s
            if tenant.head is not None:
                self._place(tenant, tenant.head)
        tenant.running -= 1
        if self._virtual_time < tenant.vft and not self._queues and self._free >= 0:
            self._virtual_time = tenant.vft
        if not tenant.running and tenant.head is None:
            self._fell_idle(tenant)
        if self._queues and self._free >= 0:
            return self._dispatch_next()
        self._free += 1
        return None

    def cancel(self, invocation_id: str, now: float) -> bool:
        self._now = later(self._now, now)
        waiting = self._held.get(invocation_id)
        if type(waiting) is not Waiting:
            return False
        del self._held[invocation_id]
        tenant = waiting.tenant
        was_head = tenant.head is waiting
        tenant.remove(waiting)
        if tenant.head is None:
            tenant.entry = tenant.later_entry = None
            self._queues -= 1
            if not tenant.running:
                self._fell_idle(tenant)
        elif was_head:
            self._place(tenant, tenant.head)
        self._sweep()
        return True

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        self._now = later(self._now, now)
        self._free += checked_slots(slots) - self._slots
        self._slots = slots
        dispatched = []
        while self._queues and self._free > 0:
            self._free -= 1
            dispatched.append(self._dispatch_next())
        return tuple(dispatched)

    def _dispatch_next(self) -> Dispatched:
        """Dispatch the earliest due waiting tenant into a slot that the caller has claimed. At least one must wait."""
        ready, surplus = self._ready, self._surplus
        if self._later and self._later[0][0] <= self._now:
            self._fill_buckets()
        while ready and ready[0][2].entry is not ready[0]:
            heappop(ready)
        while surplus and surplus[0][2].entry is not surplus[0]:
            heappop(surplus)
        heap, in_profile, others_vft = surplus, False, inf
        if ready:
            heap, in_profile = ready, True
            if surplus:
                others_vft = surplus[0][0]
        tenant = heap[0][2]
        head = tenant.head
        if head is None:  # no live entry is without one
            raise IndexError(f"nothing of tenant {tenant.name!r} waits")
        following = tenant.head = head.after
        tenant.waiting -= 1
        dispatched = self._dispatch(tenant, head.invocation_id, head.cost, in_profile, others_vft)
        if following is None:
            tenant.tail = tenant.entry = tenant.later_entry = None
            self._queues -= 1
            heappop(heap)
            return dispatched
        following.before = None
        if in_profile and tenant.tat > self._now:
            heappop(heap)
            self._place(tenant, following)
        else:
            entry = tenant.entry = (tenant.vft, following.arrival, tenant)
            heapreplace(heap, entry)
        return dispatched

    def _dispatch(
        self, tenant: Tenant, invocation_id: str, cost: float, in_profile: bool, others_vft: float
    ) -> Dispatched:
        """Do what clocks.debit does, and move V.

        `others_vft`: the lowest vft of the other waiting tenants, or inf if the dispatched one's is the lowest of all.
        """
        virtual_time = self._virtual_time
        start = tenant.vft
        if start > virtual_time + self._lead_max:
            start = virtual_time + self._lead_max
        tenant.vft = start + cost / tenant.weight
        rate = tenant.rate_per_s * self._scale
        if in_profile:
            floor = self._now - tenant.burst_s
            tenant.tat = (tenant.tat if tenant.tat > floor else floor) + cost / rate
        if virtual_time < start and virtual_time < others_vft:
            self._virtual_time = start if start < others_vft else others_vft
        tenant.running += 1
        dispatched = _new(Dispatched, (tenant.name, invocation_id, cost, in_profile, rate, tenant.weight))
        self._held[invocation_id] = dispatched
        return dispatched
