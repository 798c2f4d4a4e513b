"""A log with a gap: no process takes the entry before the gap for the last one, or writes into the gap."""

import pytest

from dispatcher.model.errors import LogGap
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.snapshot import dump
from tests.support.gate.service_world import SHARD, World, accept, report


async def written(world: World, entries: int) -> Replica:
    replica = world.replica("one")
    for number in range(entries):
        await replica.commit([report(f"w{number}")])
    return replica


async def test_a_process_that_finds_a_gap_stops_and_names_the_position(world: World) -> None:
    await written(world, 6)
    world.data.logs[SHARD].expire([3])
    two = world.replica("two")
    for _ in range(2):
        with pytest.raises(LogGap, match=f"log of {SHARD} has no entry 3, .* no snapshot above it"):
            await two.commit([accept("two-1", "two", world.clock.now())])
    assert 3 not in world.data.logs[SHARD].entries
    assert world.data.logs[SHARD].end == 6


async def test_a_snapshot_above_the_gap_leads_past_it(world: World) -> None:
    one = await written(world, 6)
    late = world.replica("late")
    log = world.store("late").log(SHARD)
    await late.catch_up()
    for number in range(6, 9):
        await one.commit([report(f"w{number}")])
    await log.save_snapshot(one.shard.position, "n", dump(one.shard))
    await one.commit([report("w9")])
    world.data.logs[SHARD].expire([7])
    await late.catch_up()
    assert dump(late.shard) == dump(one.shard)


async def test_a_snapshot_below_the_gap_does_not(world: World) -> None:
    one = await written(world, 4)
    await world.store("one").log(SHARD).save_snapshot(4, "n", dump(one.shard))
    for number in range(4, 9):
        await one.commit([report(f"w{number}")])
    world.data.logs[SHARD].expire([6])
    with pytest.raises(LogGap, match="no entry 6"):
        await world.replica("two").catch_up()
