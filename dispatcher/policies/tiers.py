"""Tiers: how urgent a tenant's work is. Rank 0 is the most urgent; adapters convert where an engine counts otherwise.

Source: the practitioner's design for tiered preemption, section 2.1. Who preempts whom is decided in the worker
(gpu_worker/policies); the gate only carries the tier along, and the client cannot set it. `system` is for what the
service asks of itself (health checks, warm-up): no tenant has it.
"""

from __future__ import annotations

from enum import StrEnum


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
"""What a tenant can have, the most urgent first."""
