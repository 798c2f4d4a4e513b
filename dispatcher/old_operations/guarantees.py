"""Guarantees hold only while the rates of the active tenants add up to no more than the capacity.

Beyond that all rates are scaled by one factor (clocks.rate_scale). The sweep sets it. Each dispatch records the rate
that it charged, so a change never distorts the requests in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.old_fleet import Worker
from dispatcher.old_operations.context import Context
from dispatcher.policies.clocks import rate_scale

ACTIVE_QUEUES_MAX = 1000


async def scale_guarantees(context: Context, pool: str) -> float:
    """Set and return the pool's factor on guaranteed rates, 0 < factor <= 1."""
    workers = await context.store.workers(pool)
    queues = await context.store.waiting_queues(pool, context.clock.now(), ACTIVE_QUEUES_MAX)
    active = {queue.name for queue in queues} | {lease.tenant for worker in workers for lease in worker.leases.values()}
    promised = sum([(await context.directory.share_of(name)).rate_per_s for name in sorted(active)])
    scale = rate_scale(promised, _capacity_per_s(context, workers))
    await context.store.note_pool(pool, rate_scale=scale)
    return scale


def _capacity_per_s(context: Context, workers: Sequence[Worker]) -> float:
    now = context.clock.now()
    return sum(worker.service_per_s for worker in workers if now < worker.alive_until)
