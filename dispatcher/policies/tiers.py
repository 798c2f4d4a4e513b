"""Tiers: how urgent the work of a tenant is. Rank 0 is the most urgent; adapters convert where an engine differs.

Source: docs/preemption-design.md, section 2.1. The worker preempts by tier (gpu_worker/policies). The gate passes the
tier on, and orders by it only if tiers are configured (shard/dispatching.py). A client cannot set it. `system` is for
the service's own requests (health checks, warm-up): no tenant has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from dispatcher.policies.bounds import OneOf


class Tier(StrEnum):
    PREMIUM = "premium"
    STANDARD = "standard"
    BACKGROUND = "background"
    SYSTEM = "system"

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
