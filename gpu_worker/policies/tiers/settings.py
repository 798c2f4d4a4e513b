"""What an operator sets about tiers: shares, aging, preemption and reservation. The defaults are the source's, where it
is right.

Source: the practitioner's design for tiered preemption, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from types import MappingProxyType
from typing import Any, Literal

from dispatcher.policies.service import CACHED_FRACTION
from dispatcher.policies.tiers import TENANT_TIERS, Tier

SHARES: Mapping[Tier, float] = MappingProxyType({Tier.PREMIUM: 0.50, Tier.STANDARD: 0.35, Tier.BACKGROUND: 0.15})


@dataclass(frozen=True, slots=True)
class TierSettings:
    """`shares`: of the service, what a tier gets at least while it has something waiting; 0 gives no such promise, and
    all together are at most 1. `share_slack`: service units that a tier may be behind its share before it goes first.

    `aging_per_s`, `aging_max`: ranks that a wait is worth, a second and at most. `deficit_factor`: ranks that a missing
    share of 1 is worth.

    `preemption`: whether a running request may be evicted for one of a more urgent tier. `preemptions_max`: how often
    that may happen to one request; what then follows is `at_limit`: `promote`, it goes before all tenants' and is not
    evicted again, or `end`, the next preemption ends it with an error. `may_drop`: tiers whose requests may be ended
    where that is cheaper than to go on later.

    `lead_max`: service over weight by which a tenant may lead another of its tier before its running requests are
    evicted for the other's (VTC, Appendix C.3); infinity never does.

    `premium_reserve`: share of the KV blocks that only premium and system requests may take, 0 to below 1 (the source
    advises 0.3; it costs throughput). `cached_fraction`: what a prompt token out of a prefix cache is charged, of one
    that was computed, 0 to 1.

    Raises ValueError for what cannot be.
    """

    shares: Mapping[Tier, float] = field(default_factory=lambda: dict(SHARES))
    share_slack: float = 4096.0
    aging_per_s: float = 0.1
    aging_max: float = 1.5
    deficit_factor: float = 2.0
    preemption: bool = True
    preemptions_max: int = 3
    at_limit: Literal["promote", "end"] = "promote"
    may_drop: frozenset[Tier] = frozenset()
    lead_max: float = inf
    premium_reserve: float = 0.0
    cached_fraction: float = CACHED_FRACTION

    def __post_init__(self) -> None:
        if not all(0 <= share <= 1 for share in self.shares.values()) or sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError("shares must be between 0 and 1, and at most 1 together")
        if Tier.SYSTEM in self.shares:
            raise ValueError("the system tier has no share: it goes first")
        for name in ("share_slack", "aging_per_s", "aging_max", "deficit_factor"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a number that is not negative, not {getattr(self, name)!r}")
        if self.preemptions_max < 0:
            raise ValueError(f"preemptions_max must not be negative, not {self.preemptions_max!r}")
        if self.at_limit not in ("promote", "end"):
            raise ValueError(f"at_limit must be promote or end, not {self.at_limit!r}")
        if not self.lead_max > 0:
            raise ValueError(f"lead_max must be above 0, not {self.lead_max!r}")
        if not 0 <= self.cached_fraction <= 1:
            raise ValueError(f"cached_fraction must be between 0 and 1, not {self.cached_fraction!r}")
        if not 0 <= self.premium_reserve < 1:
            raise ValueError(f"premium_reserve must be at least 0 and below 1, not {self.premium_reserve!r}")
        if Tier.SYSTEM in self.may_drop or not self.may_drop <= set(Tier):
            raise ValueError(f"may_drop names tiers out of {', '.join(TENANT_TIERS)}")

    def share(self, tier: Tier) -> float:
        return self.shares.get(tier, 0.0)


def tier_settings(told: Mapping[str, Any]) -> TierSettings:
    """Out of plain values, as JSON or YAML has them. Raises ValueError, with one sentence for a person."""
    known = {setting.name for setting in fields(TierSettings)}
    if unknown := sorted(set(told) - known):
        raise ValueError(f"tiers have no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    values = dict(told)
    try:
        if "shares" in values:
            values["shares"] = {Tier(tier): float(share) for tier, share in values["shares"].items()}
        if "may_drop" in values:
            values["may_drop"] = frozenset(Tier(tier) for tier in values["may_drop"])
        return TierSettings(**values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a setting of the tiers is of the wrong kind: {error}") from None
