"""BWFQ with two clocks, the gate's default order, and start-time fair queueing, which is its second clock alone.

Source: BWFQ (2025), section 3.1, in the form of clocks.py, which has the units and the reasons. A tenant's clocks are
(tat, vft). tests/support/gate/definitions.py has the same moves one at a time, and a test compares them.

    order         with a free slot: waiting tenants in profile (tat <= now) first, else all waiting tenants (surplus);
                  within either the lowest vft first, ties by the arrival of the oldest waiting call
    V             max(V, min(start stamp of the dispatched tenant, vft of the tenants that wait for the same model)) at
                  every dispatch; max(V, vft of the settled tenant) if the settlement leaves a slot free and nothing
                  waits
    models        V is that of the model whose tenants are furthest. A dispatch begins at V - lead_max at least: so
                  tenants that join a slower model soon get their turn, and a tenant that waits there gets no large lead
                  at another model. Far behind V, tenants take turns call by call.
    in a tenant   first come, first served: each call is charged when it is dispatched, so the k-th call of a flood
                  waits for the k-1 before it
    overbooked    effective rate = rate x rate_scale(sum of the rates of tenants that wait or run, capacity)

Invariants: no more calls run than there are slots (except after a reduction of the slots); a slot is free only while no
call waits that it may serve. O(log waiting tenants) a decision, amortized (two_clocks_index.py).

The second rule for V does at once what that tenant's next dispatch would do: while a slot is free, its lead delays no
other tenant. It is start-time fair queueing's rule for the end of a busy period, for each slot. Without it V would not
move under tenants that come only once, and all of them would have to be kept.

`sfq`: Goyal, Vin and Cheng, Start-time Fair Queueing (SIGCOMM 1996), section 2: a request's start tag is max(V, finish
tag of the one before it), its finish tag the start tag + cost / weight, the lowest start tag goes first, and V is the
start tag of the one dispatched. No tenant has a guarantee, so vft decides alone; a lead has no bound, because only a
guarantee puts a tenant far ahead of V. One difference from the source: V also rises at a settlement that leaves a slot
free, where the source waits until all are idle.
"""

from __future__ import annotations

from functools import partial
from math import inf

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import Charge, Index, registered
from dispatcher.policies.orders.queues import Call, Clocks, Tenant
from dispatcher.policies.orders.two_clocks_index import TwoClocksIndex


class TwoClocks:
    """`lead_max`: how far a tenant's vft may be from V, in service units a weight of 1. Raises ValueError."""

    new_clocks: Clocks = (0.0, 0.0)
    is_conserving = True

    def __init__(self, *, lead_max: float = LEAD_MAX, guarantees: bool = True) -> None:
        if not lead_max > 0:
            raise ValueError(f"lead_max must be a positive number, not {lead_max!r}")
        self.name = "bwfq" if guarantees else "sfq"
        self._guarantees = guarantees
        self._lead_max = lead_max if guarantees else inf

    def make_index(self) -> Index:
        return TwoClocksIndex(guarantees=self._guarantees)

    def joined(self, tenant: Tenant, now: float, virtual_time: float) -> tuple[Clocks, float]:
        """Lift the tenant to V if nothing of it waits. Its bucket stays at most full if its share changes."""
        clocks = tenant.clocks
        if tenant.waiting or tenant.suspended:
            return clocks, 0.0
        tat, vft = clocks
        if vft < virtual_time:
            vft = virtual_time
        elif vft > virtual_time + self._lead_max:
            vft = virtual_time + self._lead_max
        rate = tenant.rate_per_s
        if rate and not tenant.running:
            tat = max(tat, now - tenant.burst / rate)
        return (tat, vft), 0.0

    def goes_at_once(self, tenant: Tenant, now: float) -> bool:
        return True

    def charged(
        self,
        tenant: Tenant,
        cost: float,
        now: float,
        virtual_time: float,
        scale: float,
        lowest_vft: float,
    ) -> Charge:
        """Charge vft always, tat if the guarantee covers the dispatch, and move V.

        The tenant is not lifted to V again: it was lifted when it joined. If settlements have put it below V since
        then, it was charged for service that it did not get. (With a second lift, a tenant with estimates ten times too
        high got 3 of 10 slots beside an equal tenant, not 5.) It is lifted to V - lead_max: where its vft was cut at
        V + lead_max, settlements refund more than it was charged. (Without this bound, a tenant of weight 0.01 got
        59 % of a minute's slots, not 1 %.)

        `scale` shrinks the bucket in the same proportion as the rate: its depth in seconds, burst over the unscaled
        rate, stays. So a full bucket is full at every scale. Otherwise a tenant with forgotten clocks would gain over
        one with kept clocks.
        """
        tat, start = tenant.clocks
        if start > virtual_time + self._lead_max:
            start = virtual_time + self._lead_max
        elif start < virtual_time - self._lead_max:
            start = virtual_time - self._lead_max
        moved = start if start < lowest_vft else lowest_vft
        if moved < virtual_time:
            moved = virtual_time
        finish = start + cost / tenant.weight
        rate = tenant.rate_per_s
        if not rate or not self._guarantees:
            return False, 0.0, (tat, finish), moved
        effective = rate * scale
        if tat > now:
            return False, effective, (tat, finish), moved
        full = now - tenant.burst / rate
        return True, effective, ((tat if tat > full else full) + cost / effective, finish), moved

    def settled(self, tenant: Tenant, call: Call, served: float) -> Clocks:
        error = served - call.cost
        if not error:
            return tenant.clocks
        tat, vft = tenant.clocks
        if call.charge_in_profile:
            tat += error / call.charge_rate_per_s
        return tat, vft + error / call.charge_weight

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        return max(virtual_time, clocks[1])

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        """Whether its bucket is full and its vft leads nothing."""
        tat, vft = tenant.clocks
        rate = tenant.rate_per_s
        return vft <= virtual_time and (not rate or not self._guarantees or tat <= now - tenant.burst / rate)


registered("bwfq")(TwoClocks)
registered("sfq")(partial(TwoClocks, guarantees=False))
