"""Executors of calls that no process holds while the shard suspends them: a leader starts them, or the sweep."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dispatcher.model.commands import Return
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool, Pools
from dispatcher.processes.pool_sweep import PoolSweep
from dispatcher.service.gate.courier import AGAIN_S
from dispatcher.service.gate.presence import GONE_SILENT_S
from dispatcher.settings.config import load_config
from dispatcher.shard.state.records import NO_PROCESS
from tests.support.world.processes import SHARD, World, accept, start_gates, start_worker

CALLS = 6
SLOTS = 2
SWEEP_EVERY_S = 60.0


async def suspended(world: World, *gates: str) -> list[str]:
    """Return waiting calls that no process holds. Their first offers were not begun."""
    await start_gates(world, *gates)
    worker, front = await start_worker(world, SLOTS), world.link("front")
    names = [front.new_id() for _ in range(CALLS)]
    for name in names:
        now = world.clock.now()
        await world.on("front", front.do(accept(name, NO_PROCESS, now, durable=True, deadline_at=now + 3_600)))
    for name in names[:SLOTS]:
        await world.on("worker", worker.do(Return(name, 1, "not_begun", "w1")))
    world.launches.started.clear()
    return names


async def test_an_executor_is_started_for_one_call_after_the_other_and_no_slot_is_taken(world: World) -> None:
    names = await suspended(world, "g1")
    await asyncio.sleep(2 * CALLS * AGAIN_S)
    started = [name for name, _ in world.launches.started]
    assert set(started) == set(names)
    assert 2 * CALLS - 3 <= len(started) <= 2 * CALLS + 1
    state = (await world.folded()).shard.state
    assert not state.workers["w1"].running
    assert state.calls.keys() == set(names)


async def test_the_calls_go_on_when_an_executor_comes(world: World) -> None:
    names = await suspended(world, "g1")
    await asyncio.sleep(2 * GONE_SILENT_S)
    executor = world.link("executor")
    late = names[-1]
    await world.on("executor", executor.do(accept(late, "executor", world.clock.now(), durable=True)))
    await asyncio.sleep(0.5)
    state = (await world.folded()).shard.state
    assert {call.id for call in state.calls.values() if call.worker} == set(names[:SLOTS])
    assert {(name, 2) for name in names[:SLOTS]} <= set(world.launches.started)
    world.launches.started.clear()
    await asyncio.sleep(0.5)
    assert world.launches.started == []


# ── The sweep of a pool without a gate process ───────────────────────────────────────────────────────────────────────


def pool_sweep(world: World) -> PoolSweep:
    pool = Pool(world.link("sweep"), world.clock, SHARD)
    no_workers = cast("Any", None)  # a sweep executes nothing
    context = Context(Pools(pool), world.store("sweep"), no_workers, world.launches, world.clock, world.ids)
    return PoolSweep(context, pool, load_config({"HEADGATE_POOL": SHARD}))


async def test_ticks_alone_start_no_executor(world: World) -> None:
    """What a sweep did before: the calls would wait until their deadline."""
    await suspended(world)
    sweep = pool_sweep(world)
    for _ in range(10):
        await world.on("sweep", sweep.tick())
        await asyncio.sleep(SWEEP_EVERY_S)
    assert world.launches.started == []


async def test_each_sweep_starts_an_executor_for_another_suspended_call(world: World) -> None:
    names = await suspended(world)
    sweep = pool_sweep(world)
    for _ in range(CALLS):
        await world.on("sweep", sweep.tick())
        assert await world.on("sweep", sweep.start_executor())
        await asyncio.sleep(SWEEP_EVERY_S)
    assert {name for name, _ in world.launches.started} == set(names)
    assert len(world.launches.started) == CALLS


async def test_when_the_executor_holds_its_call_all_go_on_and_the_sweep_starts_no_more(world: World) -> None:
    names = await suspended(world)
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
