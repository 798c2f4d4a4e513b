"""Virtual Clock: a tenant's theoretical arrival time (tat) alone decides, for its guarantee and for the surplus.

Source: Zhang, Virtual Clock (SIGCOMM 1990), with the bucket of the generic cell rate algorithm (ITU-T I.371). So it is
the first of the gate's two clocks (clocks.py), without the second:

    order          the waiting tenant with the lowest tat, ties by the arrival of the oldest call
    a dispatch     tat = max(tat, now - burst / rate) + cost / rate, whether in profile or not
    settlement     tat += (true - estimate) / the rate recorded at the dispatch
    `+cap`         the same, but tat never more than DEBT_MAX_S ahead of now after a dispatch

Units: cost in service units, rate in service units a second, burst in service units, tat in seconds. The weight is not
used. A tenant's clocks are (tat,). Deviations: the source stamps a request when it arrives, and has no bucket. Here tat
moves at the dispatch, as in the gate's default order, so that a waiting request can be cancelled without a correction.
A tenant without a rate has no clock: its requests go after those of all tenants with a rate, first come, first served.

This order is for comparison, not for use. A tenant that used an idle pool beyond its rate pays for it later, for as
long as it did so. With the cap, tenants that are always at the cap take turns request by request, whatever the requests
cost. If the guarantees exceed the capacity, the tenant with the deepest bucket gets everything. Work conserving.
"""

from __future__ import annotations

from functools import partial
from math import inf

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import Charge, Index, registered
from dispatcher.policies.orders.keyed_index import KeyedIndex
from dispatcher.policies.orders.queues import Call, Clocks, Tenant
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.share_bounds import RATE_MIN

DEBT_MAX_S = 5.0
"""The most that a tenant's tat may be ahead of now in the capped variant."""


class VirtualClock:
    """All orders take `lead_max` and `slack`; this one does not use them.

    `debt_max_s` in seconds, above 0. Raises ValueError.
    """

    slack: Slack | None = None
    new_clocks: Clocks = (0.0,)
    is_conserving = True

    def __init__(self, *, lead_max: float = LEAD_MAX, slack: Slack | None = None, debt_max_s: float = inf) -> None:
        if not debt_max_s > 0:
            raise ValueError(f"debt_max_s must be a positive number of seconds, not {debt_max_s!r}")
        self.name = "virtual-clock" if debt_max_s == inf else "virtual-clock+cap"
        self._debt_max_s = debt_max_s

    def make_index(self) -> Index:
        return KeyedIndex(_tat)

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        return tenant.clocks, 0.0

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
        rate, (tat,) = tenant.config.rate_per_s, tenant.clocks
        if not rate:
            return False, 0.0, tenant.clocks, virtual_time
        moved = min(max(tat, now - tenant.config.burst / rate) + cost / rate, now + self._debt_max_s)
        return tat <= now, rate, (moved,), virtual_time

    def settle(self, tenant: Tenant, call: Call, served: float) -> Clocks:
        if not call.charge_rate_per_s or not tenant.config.rate_per_s:
            return tenant.clocks
        return (tenant.clocks[0] + (served - call.cost) / max(call.charge_rate_per_s, RATE_MIN),)

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        return virtual_time

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        return False


def _tat(head: Call) -> float:
    return head.tenant.clocks[0] if head.tenant.config.rate_per_s else inf


registered("virtual-clock")(VirtualClock)
registered("virtual-clock+cap")(partial(VirtualClock, debt_max_s=DEBT_MAX_S))
