"""How late a pool is, as its log shows it: what waits, and what should have been decided."""

from __future__ import annotations

import asyncio

from dispatcher.model.commands import Tick
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.service.load_watch import LoadWatch
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.fleet_load import pool_delays
from tests.support.gate.lone_shard import LoneShard, report
from tests.support.gate.service_world import SHARD, World, new_call, start_gates, start_worker


def test_an_empty_pool_has_no_delays() -> None:
    delays = pool_delays(LoneShard().shard, 0.0)
    assert delays.oldest_wait_s == {"premium": 0.0, "standard": 0.0, "background": 0.0}
    assert delays.overdue_s == 0.0


def test_the_oldest_waiting_call_counts_in_each_tier_and_deferred_ones_do_not() -> None:
    gate = LoneShard(ShardSettings(slack=Slack(5_000.0)), report(slots=1))
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
