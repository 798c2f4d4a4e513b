"""The sweep of a pool without a gate process: calls that no process holds go on, though no leader starts executors."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dispatcher.model.commands import Return
from dispatcher.model.records.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool, Pools, PoolSettings
from dispatcher.processes.pool_sweep import PoolSweep
from dispatcher.service.link.link import Link
from dispatcher.settings.config import load_config
from dispatcher.shard.state.records import NO_PROCESS
from tests.support.gate.service_world import SHARD, World, accept, start_worker

CALLS = 4
SLOTS = 2
SWEEP_EVERY_S = 60.0


def pool_sweep(world: World) -> PoolSweep:
    pool = Pool(world.link("sweep"), world.clock, PoolSettings(SHARD))
    no_workers = cast(Any, None)  # a sweep executes nothing
    context = Context(Pools(pool), world.store("sweep"), no_workers, world.launches, world.clock, world.ids)
    return PoolSweep(context, pool, load_config({"HEADGATE_POOL": SHARD}))


async def suspended(world: World) -> tuple[Link, list[str]]:
    """Return a front's link and its waiting calls, which no process holds. The first offers were not begun."""
    worker = await start_worker(world, SLOTS)
    front = world.link("front")
    names = [front.new_id() for _ in range(CALLS)]
    for name in names:
        now = world.clock.now()
        await world.on("front", front.do(accept(name, NO_PROCESS, now, durable=True, deadline_at=now + 3_600)))
    for name in names[:SLOTS]:
        await world.on("worker", worker.do(Return(name, 1, "not_begun", "w1")))
    world.launches.started.clear()
    return front, names


async def test_ticks_alone_start_no_executor(world: World) -> None:
    """What a sweep did before: the calls would wait until their deadline."""
    await suspended(world)
    sweep = pool_sweep(world)
    for _ in range(10):
        await world.on("sweep", sweep.tick())
        await asyncio.sleep(SWEEP_EVERY_S)
    assert world.launches.started == []


async def test_each_sweep_starts_an_executor_for_another_suspended_call(world: World) -> None:
    _, names = await suspended(world)
    sweep = pool_sweep(world)
    for _ in range(CALLS):
        await world.on("sweep", sweep.tick())
        assert await world.on("sweep", sweep.start_executor())
        await asyncio.sleep(SWEEP_EVERY_S)
    assert {name for name, _ in world.launches.started} == set(names)
    assert len(world.launches.started) == CALLS


async def test_when_the_executor_holds_its_call_all_go_on_and_the_sweep_starts_no_more(world: World) -> None:
    _, names = await suspended(world)
    sweep = pool_sweep(world)
    assert await world.on("sweep", sweep.start_executor())
    ((started, _),) = world.launches.started
    executor = world.link("executor")
    await world.on("executor", executor.do(accept(started, "executor", world.clock.now(), durable=True)))
    await asyncio.sleep(0.5)
    state = (await world.folded()).shard.state
    assert sum(bool(call.worker) for call in state.calls.values()) == SLOTS
    assert state.calls.keys() == set(names)
    assert not await world.on("sweep", sweep.start_executor())


async def test_the_waiting_calls_of_a_deleted_tenant_end_and_no_others(world: World) -> None:
    await start_worker(world, SLOTS)
    front, now = world.link("front"), world.clock.now()
    calls = {tenant: [front.new_id() for _ in range(CALLS)] for tenant in ("kept", "gone.1")}
    await world.store("sweep").put_tenant(Tenant("kept"), expected_version=None)
    for tenant, names in calls.items():
        for name in names:
            new = accept(name, NO_PROCESS, now, tenant=tenant, durable=True, deadline_at=now + 3_600)
            await world.on("front", front.do(new))
    held = accept(front.new_id(), "front", now, tenant="gone.1", deadline_at=now + 3_600)
    await world.on("front", front.do(held))
    sweep = pool_sweep(world)
    running = {each for each, call in (await world.folded()).shard.state.calls.items() if call.worker}
    assert len(running) == SLOTS
    ended = set(calls["gone.1"]) - running
    assert await world.on("sweep", sweep.end_of_deleted()) == len(ended)
    assert not await world.on("sweep", sweep.end_of_deleted())
    left = (await world.folded()).shard.state.calls.keys()
    assert left == {*calls["kept"], *calls["gone.1"], held.id} - ended
