"""Tiers: how urgent the work of a tenant is. Rank 0 is the most urgent; adapters convert where an engine differs.

Source: docs/preemption-design.md, section 2.1. The worker preempts by tier (gpu_worker/policies). The gate passes the
tier on, and orders by it only if tiers are configured (shard/attempts.py). A client cannot set it. `system` is for the
service's own requests (health checks, warm-up): no tenant has it.

At the gate a tier has a floor: the least service that it gets while it has waiting calls. Source: the same document,
section 4.2. The worker has the same rule for tokens (gpu_worker/policies/tiers.py). Let S be the estimated
service of all dispatches since tier t last began to wait, S_t that of the dispatches of t since then, and s_t the share
of t:

    behind_t = s_t S - S_t            service units; 0 for a tier without waiting calls
    behind_t >= -slack                a larger lead is forgotten

A tier is *owed* if behind_t > slack. Of the tiers that wait for the model of the free slot, the one that is owed most
goes first. If none is owed, the most urgent goes first. While all tiers wait for one model, there is a bound: a call
with B service before it in its tier is dispatched before (B + 2 slack) / s_t more service is dispatched in all tiers
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from dispatcher.policies.bounds import OneOf


class Tier(StrEnum):
    PREMIUM = "premium"
    STANDARD = "standard"
    BACKGROUND = "background"
    SYSTEM = "system"

    __hash__ = str.__hash__
    """This is the hash of its name: an enum's own is a function of Python, and each step looks tiers up."""

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {Tier.SYSTEM: -1, Tier.PREMIUM: 0, Tier.STANDARD: 1, Tier.BACKGROUND: 2}

TENANT_TIERS = (Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND)
"""The tiers that a tenant can have, the most urgent first."""
TenantTier = Annotated[Tier, OneOf(TENANT_TIERS)]
TierName = Annotated[str, OneOf(TENANT_TIERS)]

SHARES: Mapping[Tier, float] = MappingProxyType({Tier.PREMIUM: 0.5, Tier.STANDARD: 0.35, Tier.BACKGROUND: 0.15})
"""The default shares of the tiers (docs/preemption-design.md, section 4.2)."""


_Behind = dict[str, float]


def owed_first(behind: Mapping[str, float], slack: float) -> list[str]:
    """Return the tiers that are owed service (behind > slack), the one that is furthest behind first."""
    owed = [(lack, tier) for tier, lack in behind.items() if lack > slack]
    return [tier for _, tier in sorted(owed, reverse=True)]


def after_dispatch(
    behind: Mapping[str, float],
    waiting: Iterable[str],
    tier: str,
    cost: float,
    shares: Mapping[str, float],
    slack: float,
) -> _Behind:
    """Return how far each waiting tier is behind after a dispatch of `tier`. All numbers are in service units."""
    moved = {each: behind.get(each, 0.0) + shares.get(each, 0.0) * cost for each in waiting}
    if tier in moved:
        moved[tier] = max(-slack, moved[tier] - cost)
    return moved
