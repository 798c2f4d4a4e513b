"""Calls, news, the fleet and usage through a link, in virtual time over a network and a store with latencies."""

import asyncio

import pytest

from dispatcher.model.commands import Offer, Over, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.service.link.link import ASKS_MAX
from tests.support.world.processes import World, end, new_call, start_fleet, start_gates, start_worker


async def test_a_call_through_the_leader(world: World) -> None:
    front, worker = await start_fleet(world, "g1", "g2", "g3", slots=1)
    first, second = new_call(world, front), new_call(world, front)
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


async def test_news_that_arrive_first_are_kept(world: World) -> None:
    front, worker = await start_fleet(world, "g1", slots=1)
    first, second = new_call(world, front), new_call(world, front)
    offer = await world.on("front", front.do(first))
    await world.on("front", front.do(second))
    await world.on("worker", worker.do(end(first.id, offer.attempt)))
    await asyncio.sleep(1)
    assert isinstance(await front.news(second.id, 1), Offer)
    assert await front.news(second.id, 1) is None


async def test_without_a_leader_a_process_decides_alone_and_polls_its_mailbox(world: World) -> None:
    worker = await start_worker(world, slots=1)
    one, two = world.link("one"), world.link("two")
    first, second = new_call(world, one), new_call(world, two)
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


async def test_a_letter_of_another_version_does_not_hold_up_the_others(world: World) -> None:
    worker = await start_worker(world, slots=1)
    one, two = world.link("one"), world.link("two")
    first, second = new_call(world, one), new_call(world, two)
    await world.on("one", one.do(first))
    await world.on("two", two.do(second))
    await world.store("one").mailboxes.put("two", 0, [b'["another version"]'])
    news = world.host("two").spawn(two.news(second.id, 10))
    await asyncio.sleep(3)
    await world.on("worker", worker.do(end(first.id, 1)))
    assert isinstance(await news, Offer)


async def test_the_last_gate_process_resigns(world: World) -> None:
    front, _ = await start_fleet(world, "g1", slots=100)
    await world.on("front", front.do(new_call(world, front)))
    world.gates["g1"].stop()
    await asyncio.sleep(0.5)
    assert (await world.folded()).shard.leader == ""
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(new_call(world, front))), Offer)
    assert world.clock.now() - began < 0.3


async def test_fleet_and_usage_come_from_the_leader(world: World) -> None:
    front, worker = await start_fleet(world, "g1", slots=3)
    first = new_call(world, front)
    await world.on("front", front.do(first))
    await world.on("worker", worker.do(end(first.id, 1)))
    assert [each.slots for each in await world.on("front", front.fleet())] == [3]
    hour = int(world.clock.now() // 3600)
    rows = await world.on("front", front.usage("acme", hour, hour))
    assert [(shard, row.tenant, row.requests, row.output_tokens) for shard, row in rows] == [(0, "acme", 1, 20)]
    assert await world.on("front", front.usage("other", hour, hour)) == []


async def test_an_unheld_durable_call_is_launched(world: World) -> None:
    front, _ = await start_fleet(world, "g1", slots=2)
    first, second = (new_call(world, front, durable=True)._replace(process="") for _ in range(2))
    await world.on("front", front.do(first))
    await asyncio.sleep(0.1)
    assert world.launches.started == [(first.id, 1)]
    executor = world.link("executor")
    launched = world.host("executor").spawn(executor.launched())
    await asyncio.sleep(0.5)
    await world.on("front", front.do(second))
    assert await launched == (second.id, 1)


@pytest.mark.parametrize("frozen_s", [0.0, 60.0])
async def test_a_new_or_frozen_process_asks_as_soon_as_it_is_connected(world: World, frozen_s: float) -> None:
    """Each first request of a Lambda sandbox reads the fleet, and so does the first after a pause."""
    front, _ = await start_fleet(world, "g1", "g2")
    if frozen_s:
        await world.on("front", front.fleet())
        world.host("front").pause()
        await asyncio.sleep(frozen_s)
        world.host("front").resume()
    began = world.clock.monotonic()
    assert len(await world.on("front", front.fleet())) == 1
    assert world.clock.monotonic() - began < 0.03


async def test_a_question_that_the_leader_does_not_know_costs_few_connections(world: World) -> None:
    await start_gates(world, "g1")
    front = world.link("front")
    await world.on("front", front.fleet())
    asking = world.host("front").spawn(front._ask("unknown"))
    ended = 0
    while not asking.done():
        front.lost.clear()
        await asyncio.sleep(0.001)
        ended += front.lost.is_set()
    assert (await asking, ended) == (None, ASKS_MAX)


async def test_a_question_goes_to_the_next_leader_if_the_first_one_dies(world: World) -> None:
    front, _ = await start_fleet(world, "g1", "g2")
    await world.on("front", front.fleet())
    began = world.clock.monotonic()
    world.host("g1").kill()
    assert len(await world.on("front", front.fleet())) == 1
    assert world.clock.monotonic() - began < 0.3


async def test_an_error_of_one_taker_ends_nothing_else(world: World) -> None:
    """Rule 3: an outcome and news are given in a step of their own."""
    front, _ = await start_fleet(world, "g1", slots=1)
    first, second, got = new_call(world, front), new_call(world, front), list[object]()

    def fail(item: object) -> None:
        raise ValueError("a mistake")

    async def send() -> None:
        front.hold(first.id, fail)
        front.send(first, fail)
        front.send(second, got.append)

    await world.on("front", send())
    await asyncio.sleep(1)
    assert [type(each) for each in got] == [Waiting]
    assert not front.lost.is_set()


async def test_an_offer_that_is_an_outcome_is_no_news_again(world: World) -> None:
    front, _ = await start_fleet(world, "g1", slots=1)
    call, got, news = new_call(world, front), list[object](), list[object]()

    async def send() -> None:
        front.hold(call.id, news.append)
        front.send(call, got.append)

    await world.on("front", send())
    await asyncio.sleep(1)
    (offer,) = got
    assert isinstance(offer, Offer)
    front._waiters.put(offer)
    await asyncio.sleep(0.1)
    assert news == []


async def test_a_closed_link_answers_what_is_sent(world: World) -> None:
    front, _ = await start_fleet(world, "g1", slots=1)
    call, got = new_call(world, front), list[object]()
    await world.on("front", front.close())
    front.send(call, got.append)
    await asyncio.sleep(0.1)
    assert [type(each) for each in got] == [StoreUnavailable]
