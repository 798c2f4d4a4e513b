"""BWFQ exactly as published, for reproduction: credits earned, credits spent, and a heap ordered by their ratio.

Source: BWFQ (2025), sections 3.1 and 3.2, equations 1 to 3, Algorithms 1 and 2. A tenant i with base rate r_i:

    earned_i(t) = earned_i(t0) + (t - t0) x r_i                                     (equation 1, Algorithm 2)
    an arrival goes at once if a slot is free and earned_i - spent_i > 0; spent_i += 1  (equation 2, Algorithm 1)
    else it waits at priority p_i = spent_i / max(earned_i, 1), lowest first         (equation 3)
    on completion the head of the queue is dispatched; spent_i += 1, no credit test  (section 3.4, worker pool)

Units: earned and spent in requests ("tokens" in the paper, credits here), r_i = rate_per_s in requests a second. The
paper has no weight, burst and cost, so they are not used. Ties go by arrival. A request keeps the priority that it had
when it was queued. A tenant starts with earned = spent = 0 at its first request, so its first priority is 0. Its clocks
are (earned, spent, time of the last update).

The published algorithm has two gaps. They are kept here, so that they can be measured; clocks.py and two_clocks.py
close them:
- The first request of a new tenant is queued, because 0 > 0 is false. So is every request beyond the earned credits.
  Only a completion takes a request from the queue. So a request can wait for ever while the fleet is idle: it is
  *stranded*. The order `ratio+wake` also dispatches on arrival and when slots are added. It is work conserving, and no
  request is stranded.
- A tenant is never forgotten: earned and spent grow for ever, and a tenant that sends nothing more keeps its numbers.
  (If it were forgotten, it would return with a new tenant's priority.)
"""

from __future__ import annotations

from functools import partial

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.interface import Charge, Index, registered
from dispatcher.policies.orders.keyed_index import KeyedIndex
from dispatcher.policies.orders.queues import Call, Clocks, Tenant
from dispatcher.policies.orders.slack_index import Slack


class Ratio:
    """All orders take `lead_max` and `slack`; this one does not use them.

    `wake`: dispatch also on arrival (work conserving).
    """

    slack: Slack | None = None
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

    def settle(self, tenant: Tenant, call: Call, served: float) -> Clocks:
        return tenant.clocks

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        return virtual_time

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        return False


def _clocks_at(tenant: Tenant, now: float) -> tuple[float, float, float]:
    """Return (earned, spent, now), with the credits earned until now (Algorithm 2)."""
    if not tenant.clocks:
        return 0.0, 0.0, now
    earned, spent, at = tenant.clocks
    return earned + (now - at) * tenant.config.rate_per_s, spent, now


registered("ratio")(Ratio)
registered("ratio+wake")(partial(Ratio, wake=True))
