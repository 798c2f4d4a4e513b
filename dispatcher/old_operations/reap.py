"""reap: reclaim expired leases; their invocations are tried again, or ended and refunded.

A lease is valid while its worker is alive and names it in its heartbeats. Before the first heartbeat that can name it,
it is valid for a grace period. An execution that a live worker reports is never reclaimed, however old it is: the slot
would then count as free while it is in use.
"""

from __future__ import annotations

from dispatcher.model.old_fleet import Lease, Worker
from dispatcher.model.old_invocation import Slot, State
from dispatcher.model.old_outcomes import Written
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.drain import drain, expire
from dispatcher.old_operations.guarantees import scale_guarantees
from dispatcher.old_operations.settle import give_back

OVERDUE_MAX = 100


async def reap(context: Context, pool: str) -> int:
    """Reclaim expired leases, and return how many there were."""
    now = context.clock.now()
    count = 0
    for worker in await context.store.workers(pool):
        for number, lease in worker.leases.items():
            if _is_dead(context, worker, lease, now):
                await _reclaim(context, worker, Slot(worker.id, number), lease)
                count += 1
    return count


async def sweep(context: Context, pool: str) -> dict[str, int]:
    """Do periodically what hints may have missed: reap, expire, scale guarantees, drain. Return the counts to log."""
    reaped = await reap(context, pool)
    overdue = await context.store.overdue(pool, context.clock.now(), OVERDUE_MAX)
    for invocation in overdue:
        await expire(context, invocation, context.clock.now())
    await scale_guarantees(context, pool)
    return {"reaped": reaped, "expired": len(overdue), "dispatched": await drain(context, pool)}


def _is_dead(context: Context, worker: Worker, lease: Lease, now: float) -> bool:
    if now > worker.alive_until + context.settings.lease_margin_s:
        return True
    return lease.execution not in worker.live and now > lease.leased_at + context.settings.lease_grace_s


async def _reclaim(context: Context, worker: Worker, slot: Slot, lease: Lease) -> Written | None:
    invocation = await context.store.get(lease.tenant, lease.invocation)
    if invocation is None or invocation.state is not State.RUNNING or invocation.attempt != lease.attempt:
        return await context.store.free_slot(worker, slot, lease)
    await give_back(context, invocation)
    return None
