"""The settings of tiers: shares, aging, preemption and the premium reserve.

Source: docs/preemption-design.md, sections 2 to 4. The defaults are the source's where it gives a value,
except premium_reserve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Annotated, Any, Literal

from dispatcher.policies.bounds import AnySequence, BoundedSettings, Bounds, NotNegative, Part, check_bounds
from dispatcher.policies.service import CACHED_FRACTION
from dispatcher.policies.tiers import SHARES, TENANT_TIERS, TenantTier, Tier


@dataclass(frozen=True, slots=True)
class TierSettings(BoundedSettings):
    """`shares`: the fraction of all service that a tier receives at least while it has waiting requests; 0 guarantees
    nothing, and the sum is at most 1. `share_slack`: service units that a tier may be behind its share before it goes
    first.

    `aging_per_s`, `aging_max`: ranks that a waiting request gains per second, and at most. `deficit_factor`: ranks that
    it gains for each share of 1 that its tier lacks.

    `preemption`: whether a running request may be evicted for a request of a more urgent tier. `preemptions_max`: how
    often one request may be preempted. `at_limit`: what follows then. `promote`: the request goes before those of all
    tenants and is not evicted again; `end`: the next preemption ends it with an error. `may_drop`: tiers with
    requests that may be dropped if that is cheaper than to continue them later.

    `lead_max`: service over weight by which a tenant may lead another tenant of its tier before its running requests
    are evicted for the other's (VTC, Appendix C.3); infinity disables this.

    `premium_reserve`: fraction of the KV blocks that only premium and system requests may take, 0 to below 1. The
    source recommends 0.3, which costs throughput. `cached_fraction`: price of a prompt token found in the prefix
    cache, as a fraction of the price of a computed one, 0 to 1.

    Raises ValueError for an impossible value.
    """

    shares: Mapping[TenantTier, Part] = field(default_factory=lambda: dict(SHARES))
    share_slack: NotNegative = 4096.0
    aging_per_s: NotNegative = 0.1
    aging_max: NotNegative = 1.5
    deficit_factor: NotNegative = 2.0
    preemption: bool = True
    preemptions_max: Annotated[int, Bounds(0)] = 3
    at_limit: Literal["promote", "end"] = "promote"
    may_drop: Annotated[frozenset[TenantTier], AnySequence()] = frozenset()
    lead_max: Annotated[float, Bounds(above=0, is_finite=False)] = inf
    premium_reserve: Annotated[float, Bounds(0, below=1)] = 0.0
    cached_fraction: Part = CACHED_FRACTION

    def __post_init__(self) -> None:
        check_bounds(self)
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError("shares must be between 0 and 1, with a sum of at most 1")
        if Tier.SYSTEM in self.shares:
            raise ValueError("the system tier has no share, because it always goes first")
        if self.at_limit not in ("promote", "end"):
            raise ValueError(f"at_limit must be promote or end, not {self.at_limit!r}")
        if Tier.SYSTEM in self.may_drop or not self.may_drop <= set(Tier):
            raise ValueError(f"may_drop may contain only {', '.join(TENANT_TIERS)}")

    def share(self, tier: Tier) -> float:
        return self.shares.get(tier, 0.0)


def tier_settings(config: Mapping[str, Any]) -> TierSettings:
    """Make settings from plain values, as in JSON or YAML. Raises ValueError, with one sentence for a person."""
    known = {setting.name for setting in fields(TierSettings)}
    if unknown := sorted(set(config) - known):
        raise ValueError(f"tiers have no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    values = dict(config)
    try:
        if "shares" in values:
            values["shares"] = {Tier(tier): float(share) for tier, share in values["shares"].items()}
        if "may_drop" in values:
            values["may_drop"] = frozenset(Tier(tier) for tier in values["may_drop"])
        return TierSettings(**values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a tier setting has the wrong type: {error}") from None
