"""BWFQ with two clocks (`bwfq`), the gate's default order; and start-time fair queueing (`sfq`), its vft alone.

Source: BWFQ (2025), section 3.1, in the form of clocks.py, which has the units and the reasons. A tenant's clocks are
(tat, vft). tests/support/world/reference.py has the same moves as separate functions, and a test compares them.

    order         a free slot goes to a waiting tenant in profile (tat <= now); if there is none, to any waiting tenant
                  (surplus). Among several the lowest vft goes first, then the oldest call
    V             max(V, min(start stamp of the dispatched tenant, vft of the tenants that wait for the same model)) at
                  every dispatch; max(V, vft of the settled tenant) if the settlement leaves a slot free and nothing
                  waits
    models        all models share one V: it follows the model of the tenants with the highest stamps. A dispatch starts
                  at V - lead_max at least. So tenants that join a slower model soon get their turn, and a tenant that
                  waits there gets no large advantage at another model. Tenants that are further behind V take turns
                  call by call
    due times     with SLO classes (slack_index.py): least slack first, in profile and within a window of the surplus;
                  deferred calls after all others, charged as surplus
    in a tenant   first come, first served: each call is charged when it is dispatched, so the k-th call of a flood
                  waits for the k-1 before it
    overbooked    effective rate = rate x rate_scale(sum of the rates of tenants that wait or run, capacity)

Invariants: no more calls run than there are slots (except after a reduction of the slots). A slot is free only while no
call waits that may use it. A decision compares O(log waiting tenants) entries (`SortedEntries`).

The second rule for V, at a settlement, raises V at once to where the settled tenant's next dispatch would raise it.
This harms no other tenant: while a slot is free, a lead delays none. Start-time fair queueing has this rule for the end
of a busy period of the whole server; here it applies to each slot. Without the rule V would stand still while many
tenants send one call each, and the shard would have to remember all of them.

`sfq`: Goyal, Vin and Cheng, Start-time Fair Queueing (SIGCOMM 1996), section 2. The start tag of a request is max(V,
finish tag of the tenant's request before), its finish tag is its start tag + cost / weight. The request with the lowest
start tag is dispatched first, and V is its start tag. No tenant has a guarantee, so vft decides alone. lead_max does
not apply, because only a guarantee puts a tenant far ahead of V. There is one difference from the source: V also rises
at a settlement that leaves a slot free; in the source a request's end raises it only when the whole server becomes
idle.
"""

from __future__ import annotations

from functools import partial
from math import inf

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import Charge, Index, registered
from dispatcher.policies.orders.queues import Call, Clocks, SortedEntries, Tenant, TenantQueue
from dispatcher.policies.orders.slack_index import Slack, SlackIndex
from dispatcher.policies.share_bounds import RATE_MIN, SCALE_MIN, WEIGHT_MIN

_EFFECTIVE_RATE_MIN = RATE_MIN * SCALE_MIN
"""A log that is older than the bounds of shares may have calls that were charged with less."""


class TwoClocks:
    """`lead_max`: the bound on the distance of a tenant's vft from V, in service units for a weight of 1, above 0.

    `guarantees`: False for start-time fair queueing. Raises ValueError.
    """

    new_clocks: Clocks = (0.0, 0.0)
    is_conserving = True

    def __init__(self, *, lead_max: float = LEAD_MAX, slack: Slack | None = None, guarantees: bool = True) -> None:
        if not lead_max > 0:
            raise ValueError(f"lead_max must be a positive number, not {lead_max!r}")
        self.name = "bwfq" if guarantees else "sfq"
        self._guarantees = guarantees
        self._lead_max = lead_max if guarantees else inf
        self.slack = slack if guarantees else None

    def make_index(self) -> Index:
        if self.slack is not None:
            return SlackIndex(self.slack)
        return TwoClocksIndex(guarantees=self._guarantees)

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        """Lift the tenant to V if no call of it waits. If none runs either, cut its bucket to full: its share may have
        changed.

        Deferred calls that wait do not keep a tenant from being lifted by another call: otherwise a batch that waits
        all day would keep the tenant's vft low, and its chats would go before the chats of other tenants.
        """
        clocks = tenant.clocks
        if tenant.direct or tenant.suspended or (deferred and tenant.waiting):
            return clocks, 0.0
        tat, vft = clocks
        if vft < virtual_time:
            vft = virtual_time
        elif vft > virtual_time + self._lead_max:
            vft = virtual_time + self._lead_max
        config = tenant.config
        if config.rate_per_s and not tenant.running:
            tat = max(tat, now - config.burst / config.rate_per_s)
        return (tat, vft), 0.0

    def goes_at_once(self, tenant: Tenant, now: float) -> bool:
        return True

    def charge(
        self,
        tenant: Tenant,
        cost: float,
        now: float,
        virtual_time: float,
        scale: float,
        lowest_vft: float,
        as_surplus: bool = False,
    ) -> Charge:
        """Charge vft always, tat if the guarantee covers the dispatch, and move V.

        The tenant is not lifted to V again: it was lifted when it joined. If settlements have put it below V since
        then, it was charged for service that it did not get. (With a second lift, a tenant with estimates ten times too
        high got 3 of 10 slots beside an equal tenant, not 5.) But it is lifted to V - lead_max, because a settlement
        refunds the whole charge, also the part that an earlier cut at V + lead_max has removed. (Without this bound, a
        tenant of weight 0.01 got 59 % of a minute's slots, not 1 %.)

        `scale` shrinks the bucket in the same proportion as the rate: its depth in seconds, burst / unscaled rate,
        stays the same. So a full bucket is full at every scale. Otherwise a tenant with forgotten clocks would
        gain over a tenant with kept clocks.
        """
        tat, start = tenant.clocks
        if start > virtual_time + self._lead_max:
            start = virtual_time + self._lead_max
        elif start < virtual_time - self._lead_max:
            start = virtual_time - self._lead_max
        moved = start if start < lowest_vft else lowest_vft
        if moved < virtual_time:
            moved = virtual_time
        _, weight, rate, burst, _, _ = tenant.config
        finish = start + cost / weight
        if not rate or not self._guarantees:
            return False, 0.0, (tat, finish), moved
        effective = rate * scale
        if tat > now or as_surplus:
            return False, effective, (tat, finish), moved
        full = now - burst / rate
        return True, effective, ((tat if tat > full else full) + cost / effective, finish), moved

    def settle(self, tenant: Tenant, call: Call, served: float, swap_service: float = 0.0) -> Clocks:
        error = served - call.cost
        if not error and not swap_service:
            return tenant.clocks
        tat, vft = tenant.clocks
        if call.charge_in_profile:
            rate = call.charge_rate_per_s
            tat += error / (rate if rate > _EFFECTIVE_RATE_MIN else _EFFECTIVE_RATE_MIN)
        weight = call.charge_weight
        return tat, vft + (error + swap_service) / (weight if weight > WEIGHT_MIN else WEIGHT_MIN)

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        return max(virtual_time, clocks[1])

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        """Return whether the tenant's bucket is full and its vft is not ahead of V."""
        tat, vft = tenant.clocks
        if vft > virtual_time:
            return False
        rate = tenant.config.rate_per_s
        return not rate or not self._guarantees or tat <= now - tenant.config.burst / rate


class TwoClocksIndex:
    """The index of the order: three sorted lists of (clock, arrival, queue).

    `_ready` holds the waiting queues of tenants in profile, `_surplus` all other waiting queues, both by vft. `_later`
    holds the queues of `_surplus` with a guaranteed tenant a second time, by tat, until the guarantee covers them
    again.

    Invariant: every queue with a waiting call has exactly one entry in `_ready` or `_surplus`, and one in `_later` if
    its tenant has a guarantee that does not cover it now.

    `guarantees` False: no tenant is ever in profile (start-time fair queueing).
    """

    def __init__(self, *, guarantees: bool = True) -> None:
        self._guarantees = guarantees
        self._ready = SortedEntries()
        self._surplus = SortedEntries()
        self._later = SortedEntries()
        self._ready_at = -inf
        """The latest time for which `_ready` is right. The time falls only if a decision is undone."""

    def place(self, queue: TenantQueue, now: float) -> None:
        tenant, arrival = queue.tenant, queue.head().arrival
        tat, vft = tenant.clocks
        entry = (vft, arrival, queue)
        if not tenant.config.rate_per_s or not self._guarantees:
            queue.move((self._surplus, entry))
        elif tat <= now:
            self._ready_at = max(self._ready_at, now)
            queue.move((self._ready, entry))
        else:
            queue.move((self._surplus, entry), (self._later, (tat, arrival, queue)))

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        later = self._later.first
        if now < self._ready_at or (later is not None and later[0] <= now):
            self._fill_buckets(now)
        ready, surplus = self._ready.first, self._surplus.first
        if ready is None:
            return (None, inf) if surplus is None else (surplus[2], surplus[0])
        return ready[2], ready[0] if surplus is None or ready[0] < surplus[0] else surplus[0]

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        return self.due(now, virtual_time)[0]

    def first_in_profile(self, now: float) -> TenantQueue | None:
        self._fill_buckets(now)
        return self._ready.first[2] if self._ready.first else None

    def lowest_vft(self) -> float:
        return min(entries.first[0] if entries.first else inf for entries in (self._ready, self._surplus))

    def _fill_buckets(self, now: float) -> None:
        """Move the queues of tenants that are in profile again to `_ready`, and back if they are not yet at `now`."""
        if now < self._ready_at:
            self._ready_at = now
            for _, _, queue in [each for each in self._ready if each[2].tenant.clocks[0] > now]:
                self.place(queue, now)
        while (later := self._later.first) is not None and later[0] <= now:
            self.place(later[2], now)


registered("bwfq")(TwoClocks)
registered("sfq")(partial(TwoClocks, guarantees=False))
