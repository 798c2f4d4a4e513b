"""The two hints that a process writes to the pool: V after its dispatches, and whether a request waits.

They must not delay a request. V is written when the worker has started, and the backlog by the drain that follows the
queueing. tests/unit/test_round_trips.py counts the requests that are sent before the worker is called.
"""

from __future__ import annotations

from dispatcher.model.old_fleet import Pool
from dispatcher.old_operations.context import Context


def note_virtual_time(context: Context, pool: Pool, virtual_time: float) -> None:
    """Note that a dispatch moved V of `pool` to `virtual_time`; `write_virtual_time` writes it later."""
    if virtual_time > max(pool.virtual_time, context.virtual_times.get(pool.name, 0.0)):
        context.virtual_times[pool.name] = virtual_time


async def write_virtual_time(context: Context, pool: str) -> None:
    virtual_time = context.virtual_times.pop(pool, None)
    if virtual_time is not None:
        await context.store.note_pool(pool, virtual_time=virtual_time)


def note_backlog(context: Context, pool: str) -> None:
    context.backlogs.add(pool)


async def write_backlog(context: Context, pool: Pool, *, waiting: bool) -> None:
    """Write whether a request waits, if the pool's hint differs."""
    context.backlogs.discard(pool.name)
    if waiting is not pool.backlogged:
        await context.store.note_pool(pool.name, backlogged=waiting)
