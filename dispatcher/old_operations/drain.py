"""drain: give free slots to waiting requests, the earliest due first.

It runs after capacity is freed (a settlement, a reclaimed lease), in the sweep, and in every process with a waiting
caller. A slot is found first and the request is chosen then, so a more urgent request can overtake until the moment of
dispatch. The indexes are hints: the transaction checks everything again; if it fails, the drain takes a new snapshot.
Concurrent runs in one process are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dispatcher.model.errors import DeadlineExceeded
from dispatcher.model.old_fleet import Lease, Pool, WaitingQueue, Worker
from dispatcher.model.old_invocation import Invocation, State, dispatched, ended
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.pools import write_backlog
from dispatcher.old_operations.results import error_result
from dispatcher.old_operations.slots import free_slot
from dispatcher.policies.clocks import Clocks, Debit, Share, debit, in_profile

CONFLICTS_MAX = 8
"""A run ends after this many lost races: the process that won them is draining too."""
EXPIRED_MAX = 100
"""Most overdue invocations of one queue that are ended at once. The next run does the rest."""


async def drain(context: Context, pool: str) -> int:
    """Dispatch while slots are free and requests wait. Return how many; 0 if this process is draining already."""
    if pool in context.draining:
        context.drain_again.add(pool)
        return 0
    context.draining.add(pool)
    total = 0
    try:
        while True:
            context.drain_again.discard(pool)
            total += await _run(context, pool)
            if pool not in context.drain_again:
                return total
    finally:
        context.draining.discard(pool)


@dataclass(slots=True)
class _View:
    """The state that one run works on. It is read again when a write shows that it is out of date."""

    pool: Pool
    workers: tuple[Worker, ...]
    queues: list[WaitingQueue]


async def _run(context: Context, pool: str) -> int:
    count, conflicts = 0, 0
    view = await _read_view(context, pool)
    while view is not None and count < context.settings.drain_max and conflicts < CONFLICTS_MAX:
        written = await _dispatch_best(context, view)
        if written is None:
            break
        if written is Written.DONE:
            count += 1
        else:
            conflicts += 1
            view = await _read_view(context, pool)
    return count


async def _read_view(context: Context, pool: str) -> _View | None:
    """Read the pool with its free slots and waiting queues. None if there is nothing to do."""
    snapshot = await context.store.snapshot(pool, queue="")
    context.remember(snapshot.workers)
    now = context.clock.now()
    if not any(context.may_use(worker, now) and worker.free_slots() for worker in snapshot.workers):
        if pool in context.backlogs:
            await write_backlog(context, snapshot.pool, waiting=True)
        return None
    queues = await context.store.waiting_queues(pool, now, context.settings.queues_per_snapshot)
    await write_backlog(context, snapshot.pool, waiting=bool(queues))
    return _View(snapshot.pool, snapshot.workers, list(queues)) if queues else None


async def _dispatch_best(context: Context, view: _View) -> Written | None:
    """Dispatch from the earliest due queue that a free slot can serve. None if there is no such queue."""
    now = context.clock.now()
    for queue, share in await _in_order(context, view, now):
        head = await _head_in_time(context, queue.name, now)
        if head is None:
            view.queues.remove(queue)
        elif (slot := free_slot(context, view.workers, head.model, now)) is not None:
            clocks = Clocks(queue.tat, queue.vft)
            scale, lead = view.pool.rate_scale, context.settings.lead_max
            charged = debit(
                clocks,
                share,
                head.estimate,
                now,
                view.pool.virtual_time,
                rate_scale=scale,
                lead_max=lead,
                was_queued=True,
            )
            return await _dispatch(context, view, queue, dispatched(head, slot, charged.charge, now), charged)
    return None


async def _head_in_time(context: Context, queue: str, now: float) -> Invocation | None:
    """Return the oldest request of the queue that is not overdue, and end the overdue ones before it.

    Ending them is not a lost race: the run goes on while slots are free and other requests wait.
    """
    for _ in range(EXPIRED_MAX):
        head = await context.store.head_of(queue)
        if head is None or now < head.deadline_at:
            return head
        await expire(context, head, now)
    return None


async def _in_order(context: Context, view: _View, now: float) -> list[tuple[WaitingQueue, Share]]:
    """Return the queues in BWFQ's order: in profile before surplus, and the lowest vft first within each."""
    known = [(queue, await context.directory.share_of(queue.name)) for queue in view.queues]

    def due(entry: tuple[WaitingQueue, Share]) -> tuple[bool, float, str]:
        queue, share = entry
        return (not in_profile(Clocks(queue.tat, queue.vft), share, now), queue.vft, queue.name)

    return sorted(known, key=due)


async def _dispatch(
    context: Context, view: _View, queue: WaitingQueue, invocation: Invocation, charged: Debit
) -> Written:
    written = await context.store.dispatch(invocation, charged, invocation.dispatched_at or 0.0)
    if written is not Written.DONE:
        return Written.CONFLICT
    if invocation.detached:
        # Only a hint: if it cannot be sent, the sweep repairs it, and this run goes on with other requests.
        context.spawn(context.launcher.launch(invocation.tenant, invocation.id, invocation.attempt))
    else:
        context.wakeups.notify(invocation)
    virtual_time = _virtual_time(context, view, charged)
    _apply(view, queue, invocation, charged)
    if virtual_time > view.pool.virtual_time:
        await context.store.note_pool(view.pool.name, virtual_time=virtual_time)
        view.pool = replace(view.pool, virtual_time=virtual_time)
    return Written.DONE


def _virtual_time(context: Context, view: _View, charged: Debit) -> float:
    """Return V after this dispatch: the lowest start stamp of the waiting queues and the dispatched one, never falling.

    If more queues wait than one read shows, the lowest may not be among them: V then stays.
    """
    if len(view.queues) >= context.settings.queues_per_snapshot:
        return view.pool.virtual_time
    return max(view.pool.virtual_time, min([charged.start_stamp, *(queue.vft for queue in view.queues)]))


def _apply(view: _View, queue: WaitingQueue, invocation: Invocation, charged: Debit) -> None:
    """Apply the dispatch to the view, so that a run of many dispatches does not read the pool after each."""
    tat, vft = charged.tat.apply(queue.tat), charged.vft.apply(queue.vft)
    view.queues.remove(queue)
    if tat is not None and vft is not None:
        view.queues.append(WaitingQueue(queue.name, tat, vft))
    slot = invocation.slot
    if slot is None:
        return
    lease = Lease(invocation.tenant, invocation.id, invocation.attempt, invocation.dispatched_at or 0.0)
    view.workers = tuple(
        replace(worker, leases={**worker.leases, slot.number: lease}) if worker.id == slot.worker else worker
        for worker in view.workers
    )


async def expire(context: Context, invocation: Invocation, now: float) -> None:
    """End an overdue waiting invocation, and wake its waiter.

    Not if it was dispatched just before: then the waiter executes it.
    """
    gone = ended(invocation, State.EXPIRED, now, result=error_result(DeadlineExceeded()))
    if await context.store.drop(gone) is Settled.SETTLED:
        context.wakeups.notify(gone)
