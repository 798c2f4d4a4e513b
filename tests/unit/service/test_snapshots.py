"""When a snapshot is due: by the length of the log, and by age, because entries and snapshots expire."""

import asyncio

from dispatcher.service import snapshots
from dispatcher.service.gate.follower import at_once
from dispatcher.service.gate.replica import Replica
from dispatcher.service.log_keeper import LogKeeper
from dispatcher.service.snapshots import IDLE_S, INTERVAL_S, UNSAVED_S, Snapshots
from tests.support.world.memory_store import MemoryStore
from tests.support.world.processes import SHARD, World, report

LIMIT_S = 10 * IDLE_S


async def prepared(entries: int) -> tuple[World, Replica, Snapshots]:
    world = World()
    replica = world.replica("one")
    store = MemoryStore(world.clock, data=world.data)
    kept = Snapshots(store.log(SHARD), store, SHARD, world.clock, world.ids, at_once)
    await replica.catch_up()
    for number in range(entries):
        await replica.commit([report(f"w{number}", 1)])
    return world, replica, kept


async def test_entries_of_a_slow_shard_are_saved_within_the_hour() -> None:
    _, replica, kept = await prepared(1)
    assert not kept.is_due(replica)
    await asyncio.sleep(UNSAVED_S)
    assert kept.is_due(replica)
    await kept.write(replica)
    assert not kept.is_due(replica)
    await asyncio.sleep(UNSAVED_S)
    assert not kept.is_due(replica)
    await replica.commit([report("new", 1)])
    assert kept.is_due(replica)


async def test_the_age_counts_from_the_snapshot_that_a_process_begins_at() -> None:
    world, replica, kept = await prepared(1)
    await asyncio.sleep(UNSAVED_S)
    await replica.commit([report("late", 1)])
    heir = world.replica("heir")
    await heir.catch_up()
    assert kept.is_due(heir)
    await kept.write(heir)
    after = world.replica("after")
    await after.catch_up()
    assert not kept.is_due(after)


async def test_an_idle_log_gets_a_snapshot_twice_a_day_and_an_empty_one_none() -> None:
    _, replica, kept = await prepared(1)
    await kept.write(replica)
    await asyncio.sleep(IDLE_S)
    assert kept.is_due(replica)
    _, empty, none = await prepared(0)
    assert not none.is_due(empty)
    await asyncio.sleep(IDLE_S)
    assert not none.is_due(empty)


async def test_a_long_log_gets_a_snapshot_a_minute_at_most() -> None:
    _, replica, kept = await prepared(1)
    replica.unsaved_bytes = snapshots.BYTES
    assert kept.is_due(replica)
    await kept.write(replica)
    replica.unsaved_bytes = snapshots.BYTES
    assert not kept.is_due(replica)
    await asyncio.sleep(INTERVAL_S)
    assert kept.is_due(replica)


async def test_the_keeper_saves_what_no_gate_process_saves() -> None:
    world, _, _ = await prepared(3)
    store = MemoryStore(world.clock, data=world.data)
    log = store.log(SHARD)
    keeper = LogKeeper(log, store, world.settings, SHARD, world.clock, world.ids)
    assert not await keeper.keep()
    await asyncio.sleep(UNSAVED_S - 1)
    read = store.requests["read_log"]
    assert not await keeper.keep()
    assert store.requests["read_log"] == read
    await asyncio.sleep(1)
    assert await keeper.keep()
    found = await log.load_snapshot()
    assert found is not None
    assert found[0] == 3
    await asyncio.sleep(UNSAVED_S)
    assert not await keeper.keep()


async def test_the_keeper_leaves_an_empty_log_alone() -> None:
    world, _, _ = await prepared(0)
    store = MemoryStore(world.clock, data=world.data)
    await asyncio.sleep(IDLE_S)
    assert not await LogKeeper(store.log(SHARD), store, world.settings, SHARD, world.clock, world.ids).keep()
    assert await store.log(SHARD).load_snapshot() is None
