"""Executors for calls that no process holds, while the shard suspends these calls."""

from __future__ import annotations

import asyncio

from dispatcher.model.commands import Return
from dispatcher.service.gate.launches import AGAIN_S
from dispatcher.service.gate.presence import GONE_SILENT_S
from dispatcher.service.link.link import Link
from dispatcher.shard.state.records import NO_PROCESS
from tests.support.gate.service_world import World, accept, start_gates, start_worker

CALLS = 6
SLOTS = 2


async def without_executors(world: World) -> tuple[Link, list[str]]:
    """Return a front's link, and its launched calls. The first offers were not begun."""
    await start_gates(world, "g1")
    worker = await start_worker(world, SLOTS)
    front = world.link("front")
    names = [front.new_id() for _ in range(CALLS)]
    for name in names:
        await world.on("front", front.do(accept(name, NO_PROCESS, world.clock.now(), durable=True)))
    for name in names[:SLOTS]:
        await world.on("worker", worker.do(Return(name, 1, "not_begun", "w1")))
    assert [name for name, _ in world.launches.started[:SLOTS]] == names[:SLOTS]
    world.launches.started.clear()
    return front, names


async def test_an_executor_is_started_for_one_call_after_the_other_and_no_slot_is_taken(world: World) -> None:
    _, names = await without_executors(world)
    await asyncio.sleep(2 * CALLS * AGAIN_S)
    started = [name for name, _ in world.launches.started]
    assert set(started) == set(names)
    assert 2 * CALLS - 3 <= len(started) <= 2 * CALLS + 1
    state = (await world.folded()).shard.state
    assert not state.workers["w1"].running
    assert state.calls.keys() == set(names)


async def test_the_calls_go_on_when_an_executor_comes(world: World) -> None:
    _, names = await without_executors(world)
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
