"""An order that is unfair on purpose: the checks of fairness must fail it."""

from __future__ import annotations

from dispatcher.policies.orders.baselines import FirstComeFirstServed
from dispatcher.policies.orders.queues import Clocks, Tenant

FAVOURITE = "a"


class Favourite(FirstComeFirstServed):
    """First come, first served, but for one tenant that goes before all others. Not registered: a test enters it."""

    name = "favourite"

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        return tenant.clocks, 0.0 if tenant.name == FAVOURITE else 1.0
