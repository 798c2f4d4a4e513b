"""reap: leases that nobody lives for are taken back, and their invocations tried again or ended and refunded.

A lease lives while its worker is alive and names it in its heartbeats; before the first heartbeat that could name it,
for a grace. What a live worker says it is executing is never reaped, however old: that would create phantom capacity.
"""

from __future__ import annotations

from dispatcher.model.fleet import Lease, Worker
from dispatcher.model.invocation import Slot, State
from dispatcher.model.outcomes import Written
from dispatcher.operations.context import Context
from dispatcher.operations.drain import drain, expire
from dispatcher.operations.guarantees import scale_guarantees
from dispatcher.operations.settle import give_back

OVERDUE_MAX = 100


async def reap(context: Context, pool: str) -> int:
    """Take back dead leases. Returns how many."""
    now = context.clock.now()
    count = 0
    for worker in await context.store.workers(pool):
        for number, lease in worker.leases.items():
            if _is_dead(context, worker, lease, now):
                await _take_back(context, worker, Slot(worker.id, number), lease)
                count += 1
    return count


async def sweep(context: Context, pool: str) -> dict[str, int]:
    """The periodic truth behind all hints: reap, expire, scale guarantees, drain. Returns what it did, for the log."""
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


async def _take_back(context: Context, worker: Worker, slot: Slot, lease: Lease) -> Written | None:
    invocation = await context.store.get(lease.tenant, lease.invocation)
    if invocation is None or invocation.state is not State.RUNNING or invocation.attempt != lease.attempt:
        return await context.store.free_slot(worker, slot, lease)
    await give_back(context, invocation)
    return None
