"""What waits and runs in each tier at one moment, for an operator."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.shard.state import State


@dataclass(frozen=True, slots=True)
class TierPicture:
    """`tenants`: those with a call. `oldest_s`: how long the first waiting call has waited; None if none waits."""

    tier: str
    tenants: int
    waiting: int
    running: int
    oldest_s: float | None


def tier_pictures(state: State, now: float) -> tuple[TierPicture, ...]:
    """Return every tier that a tenant can have, the most urgent first, at `now` (Unix seconds)."""
    arrivals: dict[str, float] = {}
    for call in state.calls.values():
        if call.queued:
            tier = call.tenant.tier
            arrivals[tier] = min(call.arrived_at, arrivals.get(tier, now))
    found = []
    for tier in TENANT_TIERS:
        tenants = [each for each in state.tenants.values() if each.tier == tier]
        waiting = [each.waiting + each.suspended for each in tenants]
        running = [each.running for each in tenants]
        busy = sum(1 for counts in zip(waiting, running, strict=True) if any(counts))
        oldest_s = now - arrivals[tier] if tier in arrivals else None
        found.append(TierPicture(tier.value, busy, sum(waiting), sum(running), oldest_s))
    return tuple(found)
