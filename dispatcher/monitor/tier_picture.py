"""What waits and runs in each tier at one moment, for an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.policies.orders.queues import Call
from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.shard.state import State


def first_arrivals(state: State, key: Callable[[Call], str]) -> dict[str, float]:
    """Return when the first of the waiting calls arrived, in Unix seconds, for each group of calls with one `key`."""
    arrivals: dict[str, float] = {}
    for call in state.calls.values():
        if call.queued:
            group = key(call)
            arrivals[group] = min(call.arrived_at, arrivals.get(group, call.arrived_at))
    return arrivals


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
    arrivals = first_arrivals(state, lambda call: call.tenant.config.tier)
    found = []
    for tier in TENANT_TIERS:
        tenants = [each for each in state.tenants.values() if each.config.tier == tier]
        waiting = [each.waiting + each.suspended for each in tenants]
        running = [each.running for each in tenants]
        busy = sum(1 for counts in zip(waiting, running, strict=True) if any(counts))
        oldest_s = now - arrivals[tier] if tier in arrivals else None
        found.append(TierPicture(tier.value, busy, sum(waiting), sum(running), oldest_s))
    return tuple(found)
