"""A decision by a wrong clock is not written later, when the clock is right again (rule 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dispatcher.model.commands import Status, Tick, Waiting
from dispatcher.model.errors import StoreUnavailable, WrongClock
from dispatcher.service.gate.replica import Replica
from tests.support.world.memory_store import MemoryLog
from tests.support.world.processes import SHARD, World, accept, report
from tests.support.world.virtual_time import LoopClock

HOUR_S = 3600.0


class OffClock(LoopClock):
    """`off_s`: how far the wall clock is off."""

    off_s = 0.0

    def now(self) -> float:
        return super().now() + self.off_s


class CheckedLog(MemoryLog):
    """Refuses the appends of a process with a wrong clock. `lost`: the reply of the next append is lost."""

    def __init__(self, log: MemoryLog, clock: OffClock) -> None:
        super().__init__(log.data, log._requests, clock)
        self.clock, self.lost = clock, False

    async def append(self, position: int, entry: bytes) -> bytes:
        if self.clock.off_s:
            raise WrongClock()
        stands = await super().append(position, entry)
        if self.lost:
            self.lost = False
            raise StoreUnavailable()
        return stands


async def queued() -> tuple[World, Replica, CheckedLog]:
    """Return a replica of a log in which the calls p-1 and p-2 wait and p-0 runs."""
    world, clock = World(), OffClock()
    log = CheckedLog(world.store("p").log(SHARD), clock)
    replica = Replica(log, world.settings, clock, "p")
    calls = [accept(f"p-{number}", "p", clock.now()) for number in range(3)]
    await replica.commit([report("w", 1), *calls])
    return world, replica, log


async def outcomes(replica: Replica) -> Sequence[object]:
    return (await replica.commit([Status("p-1"), Status("p-2")])).outcomes


async def test_a_clock_that_jumps_and_is_set_right_costs_no_waiting_call() -> None:
    """With an entry of the wrong time, all waiting calls were past their deadline for the next hour."""
    _, replica, log = await queued()
    log.clock.off_s = HOUR_S
    writing = asyncio.ensure_future(replica.commit([accept("p-3", "p", 0.0, deadline_at=log.clock.now())]))
    await asyncio.sleep(1.0)
    log.clock.off_s = 0.0
    with pytest.raises(WrongClock):
        await writing
    await replica.commit([Tick()])
    assert [type(outcome) for outcome in await outcomes(replica)] == [Waiting, Waiting]
    assert replica.shard.at <= log.clock.now()


async def test_an_entry_that_may_be_written_is_repeated_also_after_a_jump() -> None:
    """Its time is right: it was sent before the jump."""
    world, replica, log = await queued()
    log.lost = True
    writing = asyncio.ensure_future(replica.commit([accept("p-3", "p", log.clock.now())]))
    await asyncio.sleep(0.015)
    assert not log.lost
    log.clock.off_s = HOUR_S
    await asyncio.sleep(1.0)
    assert not writing.done()
    log.clock.off_s = 0.0
    assert isinstance((await writing).outcomes[0], Waiting)
    assert len(world.data.logs[SHARD].entries) == 2
