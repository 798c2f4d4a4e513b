"""First come, first served: the baseline. It is fair between calls, not between tenants.

Source: the baseline of BWFQ (2025), section 4.1. A call is dispatched at once if a slot is free (then no call waits).
Otherwise it waits for all earlier calls of all tenants. Work conserving. A tenant has no clocks.
"""

from __future__ import annotations

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import Charge, Index, registered
from dispatcher.policies.orders.keyed_index import KeyedIndex
from dispatcher.policies.orders.queues import Call, Clocks, Tenant
from dispatcher.policies.orders.slack_index import Slack


@registered("fcfs")
class FirstComeFirstServed:
    """All orders take `lead_max` and `slack`; this one does not use them."""

    name = "fcfs"
    slack: Slack | None = None
    new_clocks: Clocks = ()
    is_conserving = True

    def __init__(self, *, lead_max: float = LEAD_MAX, slack: Slack | None = None) -> None:
        pass

    def make_index(self) -> Index:
        return KeyedIndex(lambda head: head.priority)

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
        return False, 0.0, tenant.clocks, virtual_time

    def settle(self, tenant: Tenant, call: Call, served: float) -> Clocks:
        return tenant.clocks

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        return virtual_time

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        return True
