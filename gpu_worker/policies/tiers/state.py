"""Where one request stands among the tiers: its rank, how it moves while it waits, and who may evict it.

Source: the practitioner's design for tiered preemption, sections 2.2 and 4.2. Lower goes first:

    effective rank = rank of the tier - min(wait x aging_per_s, aging_max) - deficit of the tier x deficit_factor

`wait`: seconds in the line, all its stays there together; `deficit` as in tiers/shares.py. A running request keeps the
rank with which it was admitted.

Deviations: with the source's defaults a background request that waits for ever reaches 2 - 1.5 - 0.15 x 2 = 0.2, still
behind every premium request that just came: nothing holds that it ever runs. Here the fair share is a floor beside the
ranks (tiers/shares.py), and who was admitted for it is not evicted again. A request that was preempted as often as may
be ranks as PROMOTED, and is not evicted again either.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.request import QueueRequest
from gpu_worker.policies.tiers.settings import TierSettings

PROMOTED = -0.5
"""Between premium's rank and the system's."""


@dataclass(slots=True, eq=False)
class TierState:
    """`since_s`: when it came into its line; `waited_s`: before that. `rank`: that of its admission, the policy's
    `admission`-th. `owed`: it was admitted for its tier's share. `output_tokens`: the most that was reported, as of
    decode step `since_step`."""

    request: QueueRequest
    since_s: float
    waited_s: float = 0.0
    rank: float = 0.0
    admission: int = 0
    owed: bool = False
    preemptions: int = 0
    running: bool = False
    charged: bool = False
    resumed: bool = False
    output_tokens: int = 0
    since_step: int = 0

    @property
    def tier(self) -> Tier:
        return self.request.tier

    def exhausted(self, settings: TierSettings) -> bool:
        """It was preempted as often as may be."""
        return self.preemptions >= settings.preemptions_max

    def promoted(self, settings: TierSettings) -> bool:
        return settings.at_limit == "promote" and self.preemptions > 0 and self.exhausted(settings)

    def protected(self, settings: TierSettings) -> bool:
        """Running, it is evicted for nobody."""
        return self.owed or (settings.at_limit == "promote" and self.exhausted(settings))

    def rank_now(self, settings: TierSettings, now_s: float, deficit: float) -> float:
        """Waiting, its effective rank."""
        wait_s = self.waited_s + max(0.0, now_s - self.since_s)
        aged = min(wait_s * settings.aging_per_s, settings.aging_max)
        rank = self.tier.rank - aged - deficit * settings.deficit_factor
        return min(rank, PROMOTED) if self.promoted(settings) else rank
