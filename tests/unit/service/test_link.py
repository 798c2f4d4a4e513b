"""Links and gate processes in virtual time, over a network and a store with latencies."""

import asyncio
from typing import Any, NoReturn

import pytest

from dispatcher.model.commands import Accept, Offer, Over, Return, Waiting
from dispatcher.service.link.link import Link
from tests.support.gate.service_world import World, accept, end, in_virtual_time, report


async def started(world: World, *gates: str) -> None:
    """Start gate processes one after another; the first leads."""
    for name in gates:
        await world.gate(name)
        await asyncio.sleep(0.2)


async def heartbeats(world: World, link: Link, *workers: str, slots: int = 4) -> NoReturn:
    """Report workers once a second, as their service does."""
    while True:
        for worker in workers:
            await link.do(report(worker, slots))
        await asyncio.sleep(1)


async def with_worker(world: World, slots: int = 4) -> Link:
    """Start a worker process that reports."""
    link = world.link("worker")
    world.host("worker").spawn(heartbeats(world, link, "w1", slots=slots))
    await asyncio.sleep(0.5)
    return link


def call(world: World, link: Link, **fields: Any) -> Accept:
    return accept(link.new_id(), link.process, world.clock.now(), **fields)


@in_virtual_time()
async def test_a_call_through_the_leader() -> None:
    world = World()
    await started(world, "g1", "g2", "g3")
    worker = await with_worker(world, slots=1)
    front = world.link("front")
    first, second = call(world, front), call(world, front)
    began = world.clock.now()
    offer = await world.on("front", front.do(first))
    assert isinstance(offer, Offer)
    assert world.clock.now() - began < 0.05
    assert isinstance(await world.on("front", front.do(second)), Waiting)
    news = asyncio.create_task(front.news(second.id, 10))
    await asyncio.sleep(0.1)
    began = world.clock.now()
    over = await world.on("worker", worker.do(end(first.id, offer.attempt)))
    assert over == Over(first.id, 1, "done", 10, 20)
    offered = await news
    assert offered is not None
    assert offered[:2] == (second.id, 1)
    assert world.clock.now() - began < 0.05
    assert world.leaders == ["g1"]
    assert world.gates["g2"].rank == 0
    assert world.gates["g3"].rank == 1


@in_virtual_time()
async def test_news_that_arrive_first_are_kept() -> None:
    world = World()
    await started(world, "g1")
    worker = await with_worker(world, slots=1)
    front = world.link("front")
    first, second = call(world, front), call(world, front)
    offer = await world.on("front", front.do(first))
    await world.on("front", front.do(second))
    await world.on("worker", worker.do(end(first.id, offer.attempt)))
    await asyncio.sleep(1)
    assert isinstance(await front.news(second.id, 1), Offer)
    assert await front.news(second.id, 1) is None


@in_virtual_time()
async def test_without_a_leader_a_process_decides_alone_and_polls_its_mailbox() -> None:
    world = World()
    worker = await with_worker(world, slots=1)
    one, two = world.link("one"), world.link("two")
    first, second = call(world, one), call(world, two)
    offer = await world.on("one", one.do(first))
    assert isinstance(offer, Offer)
    assert isinstance(await world.on("two", two.do(second)), Waiting)
    news = world.host("two").spawn(two.news(second.id, 10))
    await asyncio.sleep(3)
    began = world.clock.now()
    await world.on("worker", worker.do(end(first.id, 1)))
    assert (await news)[:2] == (second.id, 1)
    assert world.clock.now() - began < 0.3
    assert (await world.folded()).shard.epoch == 0


@in_virtual_time()
async def test_a_killed_leader_is_replaced_by_its_heir() -> None:
    world = World()
    await started(world, "g1", "g2", "g3")
    await with_worker(world, slots=1)
    front = world.link("front")
    first, second = call(world, front), call(world, front)
    assert isinstance(await world.on("front", front.do(first)), Offer)
    world.host("g1").kill()
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(second)), Waiting)
    assert world.clock.now() - began < 0.4
    assert world.leaders == ["g2"]
    await asyncio.sleep(1)
    assert world.gates["g3"].rank == 0


@pytest.mark.parametrize("seed", range(1, 9))
@in_virtual_time()
async def test_a_paused_leader_is_replaced_by_its_first_heir_and_does_not_lead_again(seed: int) -> None:
    world = World(seed)
    await started(world, "g1", "g2", "g3")
    await with_worker(world, slots=100)
    front = world.link("front")
    await world.on("front", front.do(call(world, front)))
    await asyncio.sleep(5)
    world.host("g1").pause()
    began = world.clock.now()
    latencies = []

    async def timed() -> None:
        at = world.clock.now()
        await front.do(call(world, front))
        latencies.append(world.clock.now() - at)

    for _ in range(40):
        world.host("front").spawn(timed())
        await asyncio.sleep(0.05)
    world.host("g1").resume()
    await asyncio.sleep(max(0.0, began + 5 - world.clock.now()))
    assert world.leaders == ["g2"]
    assert len(latencies) == 40
    assert max(latencies) < 0.5
    assert [world.gates[name].takeovers for name in ("g1", "g2", "g3")] == [1, 1, 0]


@in_virtual_time()
async def test_a_front_paused_for_three_seconds_loses_no_call() -> None:
    world = World()
    await started(world, "g1", "g2")
    worker = await with_worker(world, slots=1)
    front, other = world.link("front"), world.link("other")
    first = call(world, other)
    await world.on("other", other.do(first))
    held = [call(world, front) for _ in range(5)]
    for each in held:
        await world.on("front", front.do(each))
    news = [world.host("front").spawn(front.news(each.id, 60)) for each in held]
    world.host("front").pause()
    await world.on("worker", worker.do(end(first.id, 1)))
    await asyncio.sleep(2)
    await world.on("worker", worker.do(Return(held[0].id, 1, "not_begun", "w1")))
    await asyncio.sleep(1)
    assert (await world.folded()).shard.state.processes["front"].silent
    world.host("front").resume()
    for each, waiting in zip(held, news, strict=True):
        offer = await waiting
        while isinstance(offer, Offer) and offer.attempt == 1 and each is held[0]:
            offer = await world.on("front", front.news(each.id, 60))
        assert isinstance(offer, Offer)
        await world.on("worker", worker.do(end(each.id, offer.attempt)))
    assert not (await world.folded()).shard.state.calls


@in_virtual_time()
async def test_calls_of_a_killed_front_are_cancelled_together() -> None:
    world = World()
    await started(world, "g1", "g2")
    await with_worker(world, slots=1)
    front, other = world.link("front"), world.link("other")
    await world.on("other", other.do(call(world, other)))
    for _ in range(5):
        await world.on("front", front.do(call(world, front)))
    await asyncio.sleep(6)
    world.host("front").kill()
    await asyncio.sleep(1)
    state = (await world.folded()).shard.state
    assert state.processes["front"].silent
    assert len(state.calls) == 6
    await asyncio.sleep(3)
    assert len((await world.folded()).shard.state.calls) == 1


@in_virtual_time()
async def test_a_lost_worker_is_left_after_its_lease() -> None:
    world = World()
    await started(world, "g1", "g2")
    await with_worker(world, slots=1)
    front = world.link("front")
    first = call(world, front)
    await world.on("front", front.do(first))
    await asyncio.sleep(6)
    world.host("worker").kill()
    await asyncio.sleep(2)
    assert (await world.folded()).shard.state.workers["w1"].config.state == "silent"
    await asyncio.sleep(8)
    assert "w1" in (await world.folded()).shard.state.workers
    await asyncio.sleep(3)
    state = (await world.folded()).shard.state
    assert "w1" not in state.workers
    assert not state.calls[first.id].worker


@in_virtual_time()
async def test_a_repeated_acceptance_after_a_failover_counts_once() -> None:
    world = World()
    await started(world, "g1", "g2")
    await with_worker(world, slots=100)
    front = world.link("front")
    await world.on("front", front.do(call(world, front)))
    calls = [world.host("front").spawn(front.do(call(world, front))) for _ in range(20)]
    await asyncio.sleep(0.004)
    world.host("g1").kill()
    outcomes = await asyncio.gather(*calls)
    assert all(isinstance(outcome, Offer) for outcome in outcomes)
    assert len({outcome.id for outcome in outcomes}) == 20
    state = (await world.folded()).shard.state
    assert len(state.calls) == 21
    assert all(each.attempt == 1 for each in state.calls.values())


@in_virtual_time()
async def test_a_frozen_process_reconnects() -> None:
    world = World()
    await started(world, "g1", "g2")
    await with_worker(world, slots=100)
    front = world.link("front")
    await world.on("front", front.do(call(world, front)))
    await front.rest()
    world.host("front").pause()
    await asyncio.sleep(600)
    world.host("front").resume()
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(call(world, front))), Offer)
    assert world.clock.now() - began < 0.4


@in_virtual_time()
async def test_a_front_cut_off_from_the_leader_decides_alone() -> None:
    world = World()
    await started(world, "g1", "g2")
    await with_worker(world, slots=2)
    front, other = world.link("front"), world.link("other")
    await world.on("front", front.do(call(world, front)))
    await asyncio.sleep(6)
    for gate in ("g1", "g2"):
        world.network.cut("front", gate)
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(call(world, front))), Offer)
    assert world.clock.now() - began < 2.5
    assert isinstance(await world.on("other", other.do(call(world, other))), Waiting)
    await asyncio.sleep(30)
    assert len((await world.folded()).shard.state.calls) == 3
    assert world.leaders == ["g1"]
    world.network.heal()
    await asyncio.sleep(3)
    assert isinstance(await world.on("front", front.do(call(world, front))), Waiting)
    assert front._route.channel is not None


@in_virtual_time()
async def test_the_last_gate_process_resigns() -> None:
    world = World()
    await started(world, "g1")
    await with_worker(world, slots=100)
    front = world.link("front")
    await world.on("front", front.do(call(world, front)))
    world.gates["g1"].stop()
    await asyncio.sleep(0.5)
    assert (await world.folded()).shard.leader == ""
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(call(world, front))), Offer)
    assert world.clock.now() - began < 0.3


@in_virtual_time()
async def test_fleet_and_usage_come_from_the_leader() -> None:
    world = World()
    await started(world, "g1")
    worker = await with_worker(world, slots=3)
    front = world.link("front")
    first = call(world, front)
    await world.on("front", front.do(first))
    await world.on("worker", worker.do(end(first.id, 1)))
    assert [each.slots for each in await world.on("front", front.fleet())] == [3]
    hour = int(world.clock.now() // 3600)
    rows = await world.on("front", front.usage("acme", hour, hour))
    assert [(row.tenant, row.requests, row.input_tokens, row.output_tokens) for row in rows] == [("acme", 1, 10, 20)]
    assert await world.on("front", front.usage("other", hour, hour)) == []


@in_virtual_time()
async def test_an_unheld_durable_call_is_launched() -> None:
    world = World()
    await started(world, "g1")
    await with_worker(world, slots=2)
    front = world.link("front")
    first, second = (call(world, front, durable=True)._replace(process="") for _ in range(2))
    await world.on("front", front.do(first))
    await asyncio.sleep(0.1)
    assert world.launches.started == [(first.id, 1)]
    executor = world.link("executor")
    launched = world.host("executor").spawn(executor.launched())
    await asyncio.sleep(0.5)
    await world.on("front", front.do(second))
    assert await launched == (second.id, 1)
