"""The load of a pool as its log shows it, and how late the pool is: what waits, and what should have been decided."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.commands import Tick
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.service.load_watch import SLACK_S, LoadWatch, fleet_load, pool_delays
from dispatcher.shard.settings import ShardSettings
from tests.support.world.lone_shard import LoneShard, report
from tests.support.world.processes import SHARD, World, new_call, start_gates, start_worker

CLASSES = ShardSettings(slack=Slack(5_000.0))


def test_an_empty_pool_has_a_load_of_zeros_and_no_delays() -> None:
    shard = LoneShard().shard
    load, delays = fleet_load(shard.state, 0.0, 0.0), pool_delays(shard, 0.0)
    assert delays.oldest_wait_s == {"premium": 0.0, "standard": 0.0, "background": 0.0}
    assert delays.overdue_s == 0.0
    assert load.waiting == {"premium": 0, "standard": 0, "background": 0}
    assert (load.ready, load.leaving, load.holding, load.waiting_service) == (1, 0, 0, 0.0)


def test_waiting_calls_count_by_tier_and_deferred_ones_with_slack_cost_nothing() -> None:
    gate = LoneShard(CLASSES, report(slots=1, capacity_per_s=40.0), report("v", slots=1, capacity_per_s=20.0))
    for _ in range(2):
        gate.call("a", cost=5.0)
    gate.call("a", cost=7.0)
    gate.call("b", cost=11.0, tier="premium")
    gate.call("a", cost=100.0, deferred=True, due_at=gate.now + SLACK_S + 1)
    gate.call("a", cost=13.0, deferred=True, due_at=gate.now + SLACK_S - 1)
    load = fleet_load(gate.shard.state, 3.0, gate.now)
    assert load.waiting == {"premium": 1, "standard": 3, "background": 0}
    assert load.waiting_service == 31.0
    assert (load.holding, load.service_per_s, load.arriving_per_s) == (2, 30.0, 3.0)


def test_a_draining_worker_is_leaving() -> None:
    gate = LoneShard(None, report(), report("v"))
    gate.do(report("v")._replace(draining=True))
    load = fleet_load(gate.shard.state, 0.0, gate.now)
    assert (load.ready, load.leaving) == (1, 1)


async def test_arrivals_count_for_about_a_minute_and_deferred_ones_do_not() -> None:
    world = World(settings=CLASSES)
    await start_gates(world, "g1")
    await start_worker(world)
    front, watch = world.link("front"), LoadWatch(world.store("sweep").log(SHARD), world.settings, world.clock)
    assert (await watch.load()).arriving_per_s == 0.0
    for number in range(240):
        await world.on("front", front.do(new_call(world, front, cost=50.0, deferred=number % 2 == 1)))
        await asyncio.sleep(1.0)
    load = await watch.load()
    assert load.arriving_per_s == pytest.approx(25.0, rel=0.1)
    assert load.ready == 1
    await asyncio.sleep(300.0)
    assert (await watch.load()).arriving_per_s < 1.0


def test_the_oldest_waiting_call_counts_in_each_tier_and_deferred_ones_do_not() -> None:
    gate = LoneShard(CLASSES, report(slots=1))
    gate.call("a")
    for tier in ("standard", "standard", "premium"):
        gate.now += 10.0
        gate.call("a" if tier == "standard" else "b", tier=tier)
    gate.call("a", deferred=True, due_at=gate.now + 5_000.0)
    gate.now += 7.0
    delays = pool_delays(gate.shard, gate.now)
    assert delays.oldest_wait_s == {"premium": 7.0, "standard": 27.0, "background": 0.0}


def test_a_deadline_that_has_passed_is_overdue_until_the_log_has_it() -> None:
    gate = LoneShard(None, report(slots=1))
    for _ in range(2):
        gate.call("a", wait_s=30.0)
    assert pool_delays(gate.shard, gate.now + 29.0).overdue_s == 0.0
    gate.now += 100.0
    assert pool_delays(gate.shard, gate.now).overdue_s == 70.0
    gate.do(Tick())
    assert pool_delays(gate.shard, gate.now).overdue_s == 0.0


async def test_without_a_gate_process_the_log_stands_and_the_sweep_sees_it(world: World) -> None:
    await start_gates(world, "g1")
    await start_worker(world, slots=1)
    front, watch = world.link("front"), LoadWatch(world.store("sweep").log(SHARD), world.settings, world.clock)
    for _ in range(2):
        await world.on("front", front.do(new_call(world, front)))
    assert (await watch.delays()).overdue_s == 0.0
    for name in ("g1", "front", "worker"):
        world.host(name).kill()
    await asyncio.sleep(1_000.0)
    late = await watch.delays()
    assert late.overdue_s > 60.0
    assert late.oldest_wait_s["standard"] >= 1_000.0
