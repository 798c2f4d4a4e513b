"""The state of one request among the tiers: its rank, how the rank changes while it waits, and what protects it.

Source: docs/preemption-design.md, sections 2.2 and 4.2. The lowest effective rank goes first:

    effective rank = rank of the tier - min(wait x aging_per_s, aging_max) - deficit of the tier x deficit_factor

`wait`: the seconds of all its stays in the queue together; `deficit` as in shares.py. A running request keeps the rank
that it had at its admission.

Deviations: with the source's defaults a background request that waits for ever reaches rank 2 - 1.5 - 0.15 x 2 = 0.2,
which is still behind every new premium request, so nothing guarantees that it ever runs. Here the fair share is a
minimum that does not depend on ranks (shares.py), and a request admitted for its tier's share is not evicted. A request
that was preempted `preemptions_max` times gets the rank PROMOTED and is not evicted again either.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.request import QueueRequest, RequestRecord
from gpu_worker.policies.tiers.settings import TierSettings

PROMOTED = -0.5
"""Between the rank of premium and that of the system tier."""


@dataclass(slots=True, eq=False)
class TierState:
    """What the tiers add to the record that the policy of the request's tier keeps.

    `since_s`: when the request entered its queue. `waited_s`: seconds in the queue before that. `rank`: effective rank
    at its admission, which was number `admission` of the policy. `for_share`: it was admitted because its tier was
    owed service. `aged`: at its admission, aging had raised it by a whole rank, so that it stood with the tier above.
    """

    record: RequestRecord
    since_s: float
    waited_s: float = 0.0
    rank: float = 0.0
    admission: int = 0
    for_share: bool = False
    aged: bool = False
    running: bool = False

    @property
    def request(self) -> QueueRequest:
        return self.record.request

    @property
    def tier(self) -> Tier:
        return self.record.request.tier

    @property
    def preemptions(self) -> int:
        return self.record.preemptions

    def exhausted(self, settings: TierSettings) -> bool:
        """Return whether the request was preempted as often as the settings allow."""
        return self.preemptions >= settings.preemptions_max

    def promoted(self, settings: TierSettings) -> bool:
        return settings.at_limit == "promote" and self.preemptions > 0 and self.exhausted(settings)

    def protected(self, settings: TierSettings) -> bool:
        """Return whether the request, if it runs, must not be evicted for another one."""
        return self.for_share or (settings.at_limit == "promote" and self.exhausted(settings))

    def enter_batch(
        self, settings: TierSettings, now_s: float, deficit: float, *, for_share: bool, admission: int
    ) -> None:
        """Record the admission, with the rank and the wait of this moment."""
        self.rank, self.for_share = self.rank_now(settings, now_s, deficit), for_share
        self.aged = self.gained(settings, now_s) >= 1.0
        self.waited_s += max(0.0, now_s - self.since_s)
        self.running, self.admission = True, admission

    def rank_now(self, settings: TierSettings, now_s: float, deficit: float) -> float:
        """Return the effective rank of a waiting request."""
        rank = self.tier.rank - self.gained(settings, now_s) - deficit * settings.deficit_factor
        return min(rank, PROMOTED) if self.promoted(settings) else rank

    def gained(self, settings: TierSettings, now_s: float) -> float:
        """Return the ranks that a waiting request has gained by aging."""
        wait_s = self.waited_s + max(0.0, now_s - self.since_s)
        return min(wait_s * settings.aging_per_s, settings.aging_max)
