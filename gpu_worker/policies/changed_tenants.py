"""What changed for which tenant since the last report, a few tenants at a time.

A report about all tenants costs the scheduler's thread in proportion to all tenants that it remembers. So a report has
only tenants that changed, and at most so many; the others follow in the next reports. Its cost depends neither on the
tenants nor on the requests that there are.

    begin_round()      note the running requests: the figures of their tenants change with every step
    take(most)         bring up to `most` of them up to date, and return up to `most` tenants that changed
    is_done            nothing is left of this round

The figures are those of a tenant in one tier. They are totals, so the next report about a tenant makes good a lost one.
"""

from __future__ import annotations

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import TenantFigures
from gpu_worker.policies.fairness.tiered import TieredQueue

TierFigures = tuple[Tier, TenantFigures]


class ChangedTenants:
    def __init__(self, queue: TieredQueue) -> None:
        self._queue = queue
        self._to_update: dict[Tier, list[str]] = {}
        """Running requests of this round whose output is not counted yet."""
        self._takes = 0

    @property
    def is_done(self) -> bool:
        return not any(self._to_update.values()) and not any(policy.changes for policy in self._queue.by_tier.values())

    def begin_round(self) -> None:
        self._to_update = {tier: policy.running_requests() for tier, policy in self._queue.by_tier.items()}

    def take(self, most: int) -> list[TierFigures]:
        """Update the outputs of up to `most` running requests, and return the figures of up to `most` tenants. Each
        call begins with another tier, so that a tier where very many change does not hold back the others."""
        found: list[TierFigures] = []
        updates = most
        tiers = list(self._queue.by_tier.items())
        self._takes += 1
        for place in range(len(tiers)):
            tier, policy = tiers[(place + self._takes) % len(tiers)]
            to_update = self._to_update.get(tier, [])
            if to_update and updates:
                policy.update_outputs(to_update[-updates:])
                updated = min(updates, len(to_update))
                del to_update[-updated:]
                updates -= updated
            if policy.changes and len(found) < most:
                found += [(tier, figures) for figures in policy.take_changed(most - len(found))]
        return found
