"""Orders to compare the gate's default with: first come first served, Virtual Clock, and BWFQ as published.

Each has one key for each waiting queue (`KeyedIndex`). All orders take `lead_max` and `slack`; these do not use them.
None is for use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import Charge, Index, registered
from dispatcher.policies.orders.queues import Call, Clocks, SortedEntries, Tenant, TenantQueue
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.share_bounds import RATE_MIN

_Key = Callable[[Call], float]


class KeyedIndex:
    """Lowest key first, then the earliest arrival of a queue's head. `key` computes the key from the head."""

    def __init__(self, key: _Key) -> None:
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


class _Baseline:
    """What an order does that has no virtual time and no SLO classes. All its methods are those of `Order`."""

    slack: Slack | None = None
    is_conserving = True

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        return tenant.clocks, 0.0

    def goes_at_once(self, tenant: Tenant, now: float) -> bool:
        return True

    def settle(self, tenant: Tenant, call: Call, served: float, swap_service: float = 0.0) -> Clocks:
        return tenant.clocks

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        return virtual_time

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        return False


@registered("fcfs")
class FirstComeFirstServed(_Baseline):
    """First come, first served. It is fair between calls, not between tenants.

    Source: the baseline of BWFQ (2025), section 4.1. A call is dispatched at once if a slot is free (then no call
    waits). Otherwise it waits for all earlier calls of all tenants. Work conserving. A tenant has no clocks.
    """

    name = "fcfs"
    new_clocks: Clocks = ()

    def __init__(self, *, lead_max: float = LEAD_MAX, slack: Slack | None = None) -> None:
        pass

    def make_index(self) -> Index:
        return KeyedIndex(lambda head: head.priority)

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
        return False, 0.0, tenant.clocks, virtual_time

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        return True


_DEBT_MAX_S = 5.0
"""The most that a tenant's tat may be ahead of now in the capped variant."""


class VirtualClock(_Baseline):
    """A tenant's theoretical arrival time (tat) alone decides, for its guarantee and for the surplus.

    Source: Zhang, Virtual Clock (SIGCOMM 1990), with the bucket of the generic cell rate algorithm (ITU-T I.371). So it
    is the first of the gate's two clocks (clocks.py), without the second:

        order          the waiting tenant with the lowest tat, ties by the arrival of the oldest call
        a dispatch     tat = max(tat, now - burst / rate) + cost / rate, whether in profile or not
        settlement     tat += (true - estimate) / the rate recorded at the dispatch
        `+cap`         the same, but tat never more than _DEBT_MAX_S ahead of now after a dispatch

    Units: cost in service units, rate in service units a second, burst in service units, tat in seconds. The weight is
    not used. A tenant's clocks are (tat,). Deviations: the source stamps a request when it arrives, and has no bucket.
    Here tat moves at the dispatch, as in the gate's default order, so that a waiting request can be cancelled without a
    correction. A tenant without a rate has no clock: its requests go after those of all tenants with a rate, first
    come, first served.

    A tenant that used an idle pool beyond its rate pays for it later, for as long as it did so. With the cap, tenants
    that are always at the cap take turns request by request, whatever the requests cost. If the guarantees exceed the
    capacity, the tenant with the deepest bucket gets everything. Work conserving.

    `debt_max_s` in seconds, above 0. Raises ValueError.
    """

    new_clocks: Clocks = (0.0,)

    def __init__(self, *, lead_max: float = LEAD_MAX, slack: Slack | None = None, debt_max_s: float = inf) -> None:
        if not debt_max_s > 0:
            raise ValueError(f"debt_max_s must be a positive number of seconds, not {debt_max_s!r}")
        self.name = "virtual-clock" if debt_max_s == inf else "virtual-clock+cap"
        self._debt_max_s = debt_max_s

    def make_index(self) -> Index:
        return KeyedIndex(_tat)

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
        rate, (tat,) = tenant.config.rate_per_s, tenant.clocks
        if not rate:
            return False, 0.0, tenant.clocks, virtual_time
        moved = min(max(tat, now - tenant.config.burst / rate) + cost / rate, now + self._debt_max_s)
        return tat <= now, rate, (moved,), virtual_time

    def settle(self, tenant: Tenant, call: Call, served: float, swap_service: float = 0.0) -> Clocks:
        if not call.charge_rate_per_s or not tenant.config.rate_per_s:
            return tenant.clocks
        return (tenant.clocks[0] + (served - call.cost) / max(call.charge_rate_per_s, RATE_MIN),)


def _tat(head: Call) -> float:
    return head.tenant.clocks[0] if head.tenant.config.rate_per_s else inf


registered("virtual-clock")(VirtualClock)
registered("virtual-clock+cap")(partial(VirtualClock, debt_max_s=_DEBT_MAX_S))


class Ratio(_Baseline):
    """BWFQ exactly as published, for reproduction: credits earned, credits spent, and a heap ordered by their ratio.

    Source: BWFQ (2025), sections 3.1 and 3.2, equations 1 to 3, Algorithms 1 and 2. A tenant i with base rate r_i:

        earned_i(t) = earned_i(t0) + (t - t0) x r_i                                     (equation 1, Algorithm 2)
        an arrival goes at once if a slot is free and earned_i - spent_i > 0; spent_i += 1  (equation 2, Algorithm 1)
        else it waits at priority p_i = spent_i / max(earned_i, 1), lowest first         (equation 3)
        on completion the head of the queue is dispatched; spent_i += 1, no credit test  (section 3.4, worker pool)

    Units: earned and spent in requests ("tokens" in the paper, credits here), r_i = rate_per_s in requests a second.
    The paper has no weight, burst and cost, so they are not used. Ties go by arrival. A request keeps the priority that
    it had when it was queued. A tenant starts with earned = spent = 0 at its first request, so its first priority is 0.
    Its clocks are (earned, spent, time of the last update).

    The published algorithm has two gaps. They are kept here, so that they can be measured; clocks.py and two_clocks.py
    close them:
    - The first request of a new tenant is queued, because 0 > 0 is false. So is every request beyond the earned
      credits. Only a completion takes a request from the queue. So a request can wait for ever while the fleet is idle:
      it is *stranded*. The order `ratio+wake` also dispatches on arrival and when slots are added. It is work
      conserving, and no request is stranded.
    - A tenant is never forgotten: earned and spent grow for ever, and a tenant that sends nothing more keeps its
      numbers. (If it were forgotten, it would return with a new tenant's priority.)

    `wake`: dispatch also on arrival (work conserving).
    """

    new_clocks: Clocks = ()
    """No numbers yet. A tenant's credits begin to grow at its first call."""

    def __init__(self, *, lead_max: float = LEAD_MAX, slack: Slack | None = None, wake: bool = False) -> None:
        self.name = "ratio+wake" if wake else "ratio"
        self.is_conserving = wake

    def make_index(self) -> Index:
        return KeyedIndex(lambda head: head.priority)

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        earned, spent, _ = clocks = _clocks_at(tenant, now)
        return clocks, spent / max(earned, 1.0)

    def goes_at_once(self, tenant: Tenant, now: float) -> bool:
        """Return whether the tenant has credit left (Algorithm 1, line 3)."""
        earned, spent, _ = _clocks_at(tenant, now)
        return earned - spent > 0

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
        earned, spent, at = _clocks_at(tenant, now)
        return False, 0.0, (earned, spent + 1.0, at), virtual_time


def _clocks_at(tenant: Tenant, now: float) -> tuple[float, float, float]:
    """Return (earned, spent, now), with the credits earned until now (Algorithm 2)."""
    if not tenant.clocks:
        return 0.0, 0.0, now
    earned, spent, at = tenant.clocks
    return earned + (now - at) * tenant.config.rate_per_s, spent, now


registered("ratio")(Ratio)
registered("ratio+wake")(partial(Ratio, wake=True))
