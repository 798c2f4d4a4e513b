"""What a process tells the pool: how far its dispatches have moved V, and that somebody waits.

Both are hints for others, so neither stands in a request's way: V is told once the worker has begun, the backlog by the
drain that follows the queueing. tests/unit/test_round_trips.py counts what is sent before the worker is called.
"""

from __future__ import annotations

from dispatcher.model.fleet import Pool
from dispatcher.operations.context import Context


def raised(context: Context, pool: Pool, virtual_time: float) -> None:
    """A dispatch moved V of `pool` (as it was seen) so far: to be told soon."""
    if virtual_time > max(pool.virtual_time, context.virtual_times.get(pool.name, 0.0)):
        context.virtual_times[pool.name] = virtual_time


async def tell_virtual_time(context: Context, pool: str) -> None:
    virtual_time = context.virtual_times.pop(pool, None)
    if virtual_time is not None:
        await context.store.note_pool(pool, virtual_time=virtual_time)


def queued(context: Context, pool: str) -> None:
    context.backlogs.add(pool)


async def tell_backlog(context: Context, pool: Pool, *, waiting: bool) -> None:
    """Whether somebody waits, as just seen; sent where the pool says otherwise."""
    context.backlogs.discard(pool.name)
    if waiting is not pool.backlogged:
        await context.store.note_pool(pool.name, backlogged=waiting)
