"""Links when a leader, a front, a worker or the network fails, in virtual time."""

import asyncio

import pytest

from dispatcher.model.commands import Offer, Over, Return, Status, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Connection
from dispatcher.service.authentication import sign_as_server
from dispatcher.service.frames import NotLeader, encode_frames, encode_message
from dispatcher.service.link.link import READ_S
from dispatcher.service.link.route import ALONE_AFTER_S, SEARCH_S
from gpu_worker.service.agent import Agent
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from tests.support.worker.scripted_engine import ScriptedEngine
from tests.support.world.processes import (
    SECRETS,
    SHARD,
    World,
    end,
    new_call,
    report,
    start_fleet,
    start_gates,
    start_worker,
)


async def test_a_killed_leader_is_replaced_by_its_heir(world: World) -> None:
    front, _ = await start_fleet(world, "g1", "g2", "g3", slots=1)
    first, second = new_call(world, front), new_call(world, front)
    assert isinstance(await world.on("front", front.do(first)), Offer)
    world.host("g1").kill()
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(second)), Waiting)
    assert world.clock.now() - began < 0.4
    assert world.leaders == ["g2"]
    await asyncio.sleep(1)
    assert world.gates["g3"].rank == 0


@pytest.mark.parametrize("seed", range(1, 9))
async def test_a_paused_leader_is_replaced_by_its_first_heir_and_does_not_lead_again(seed: int) -> None:
    world = World(seed)
    front, _ = await start_fleet(world, "g1", "g2", "g3", slots=100)
    await world.on("front", front.do(new_call(world, front)))
    await asyncio.sleep(5)
    world.host("g1").pause()
    began = world.clock.now()
    latencies = []

    async def timed() -> None:
        at = world.clock.now()
        await front.do(new_call(world, front))
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


async def test_a_front_paused_for_three_seconds_loses_no_call(world: World) -> None:
    await start_gates(world, "g1", "g2")
    worker = await start_worker(world, slots=1)
    front, other = world.link("front"), world.link("other")
    first = new_call(world, other)
    await world.on("other", other.do(first))
    held = [new_call(world, front) for _ in range(5)]
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


async def test_calls_of_a_killed_front_are_cancelled_together(world: World) -> None:
    await start_gates(world, "g1", "g2")
    await start_worker(world, slots=1)
    front, other = world.link("front"), world.link("other")
    await world.on("other", other.do(new_call(world, other)))
    for _ in range(5):
        await world.on("front", front.do(new_call(world, front)))
    await asyncio.sleep(6)
    world.host("front").kill()
    await asyncio.sleep(1)
    state = (await world.folded()).shard.state
    assert state.processes["front"].silent
    assert len(state.calls) == 6
    await asyncio.sleep(3)
    assert len((await world.folded()).shard.state.calls) == 1


async def test_a_lost_worker_is_left_after_its_lease(world: World) -> None:
    front, _ = await start_fleet(world, "g1", "g2", slots=1)
    first = new_call(world, front)
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


async def test_a_worker_whose_connection_breaks_reports_at_once(world: World) -> None:
    """Not only with its next heartbeat: the leader calls it silent when its connection breaks."""
    await start_gates(world, "g1")
    link, clock, random = world.link("worker"), world.clock, world.random
    executions = Executions("w1", ScriptedEngine(), 4, clock, Outbox(link, clock, random))
    agent = Agent(report("w1"), link, executions, clock, random, connection_lost=link.lost)
    await world.on("worker", agent.join())
    world.host("worker").spawn(agent.run())
    shard = world.gates["g1"].replica.shard
    for _ in range(5):
        await asyncio.sleep(5.21)
        for connection in world.network.listeners["g1:1"].connections:
            connection.close()
        await asyncio.sleep(0.25)
        states = []
        for _ in range(50):
            states.append(shard.state.workers["w1"].config.state)
            await asyncio.sleep(0.01)
        assert set(states) == {"serving"}


async def test_a_repeated_acceptance_after_a_failover_counts_once(world: World) -> None:
    front, _ = await start_fleet(world, "g1", "g2", slots=100)
    await world.on("front", front.do(new_call(world, front)))
    calls = [world.host("front").spawn(front.do(new_call(world, front))) for _ in range(20)]
    await asyncio.sleep(0.004)
    world.host("g1").kill()
    outcomes = await asyncio.gather(*calls)
    assert all(isinstance(outcome, Offer) for outcome in outcomes)
    assert len({outcome.id for outcome in outcomes}) == 20
    state = (await world.folded()).shard.state
    assert len(state.calls) == 21
    assert all(each.attempt == 1 for each in state.calls.values())


@pytest.mark.parametrize("is_question", [False, True])
async def test_a_frozen_process_reconnects(world: World, is_question: bool) -> None:
    front, _ = await start_fleet(world, "g1", "g2", slots=100)
    await world.on("front", front.do(new_call(world, front)))
    await front.rest()
    world.host("front").pause()
    await asyncio.sleep(600)
    world.host("front").resume()
    began = world.clock.now()
    if is_question:
        assert len(await world.on("front", front.fleet())) == 1
    else:
        assert isinstance(await world.on("front", front.do(new_call(world, front))), Offer)
    assert world.clock.now() - began < 0.4


async def test_another_commands_outcome_is_no_news_for_the_calls_task(world: World) -> None:
    """Seed 10813 with eight fronts: a command of the same call was pending when the connection was lost."""
    front, worker = await start_fleet(world, "g1", slots=1)
    first = new_call(world, front)
    assert isinstance(await world.on("front", front.do(first)), Offer)
    world.host("front").pause()
    await worker.do(end(first.id, 1))
    await asyncio.sleep(20)
    asking = world.host("front").spawn(front.do(Status(first.id)))
    world.host("front").resume()
    assert isinstance(await world.on("front", front.news(first.id, 5.0)), Over)
    assert isinstance(await asking, Over)


async def test_a_front_cut_off_from_the_leader_decides_alone(world: World) -> None:
    await start_gates(world, "g1", "g2")
    await start_worker(world, slots=2)
    front, other = world.link("front"), world.link("other")
    await world.on("front", front.do(new_call(world, front)))
    await asyncio.sleep(6)
    for gate in ("g1", "g2"):
        world.network.cut("front", gate)
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(new_call(world, front))), Offer)
    assert world.clock.now() - began < 2.5
    assert isinstance(await world.on("other", other.do(new_call(world, other))), Waiting)
    await asyncio.sleep(30)
    assert len((await world.folded()).shard.state.calls) == 3
    assert world.leaders == ["g1"]
    world.network.heal()
    await asyncio.sleep(3)
    assert isinstance(await world.on("front", front.do(new_call(world, front))), Waiting)
    assert front._route.channel is not None


async def test_questions_fail_while_the_table_is_away_and_an_append_is_repeated(world: World) -> None:
    await start_worker(world, slots=1)
    front = world.link("front")
    await world.on("front", front.do(new_call(world, front)))
    world.faults["front"].away = True
    world.host("front").spawn(front.do(new_call(world, front)))
    await asyncio.sleep(0.1)
    for question in (front.fleet(), front.usage("acme", 0, 1)):
        began = world.clock.now()
        with pytest.raises(StoreUnavailable):
            await world.on("front", question)
        assert world.clock.now() - began < READ_S + 0.1


async def test_questions_and_commands_fail_alike_if_the_log_cannot_be_read(world: World) -> None:
    """An operator may repair it, so callers get 503 with a time, and not 500."""
    await world.replica("one").commit([report("w")])
    world.data.logs[SHARD].append(1, b"j{", world.clock.now())
    front = world.link("front")
    for work in (front.fleet(), front.usage(None, 0, 1), front.do(new_call(world, front))):
        with pytest.raises(StoreUnavailable, match="entry 1 cannot be read"):
            await work


async def test_a_front_does_not_wait_for_a_process_that_cannot_lead_again(world: World) -> None:
    """The log names it, it listens again at its address, and the table does not answer it."""
    await start_gates(world, "g1")
    await start_worker(world, slots=100)
    front, address = world.link("front"), world.gates["g1"].address
    await world.on("front", front.do(new_call(world, front)))
    world.host("g1").kill()
    greeted = []

    async def redirect(connection: Connection) -> None:
        session = await sign_as_server(connection, SECRETS, "n")
        greeted.append(await session.receive())
        session.send(next(encode_frames([encode_message(NotLeader("", 1))])))

    await world.network.transport("g1").listen(address, redirect)
    began = world.clock.now()
    assert isinstance(await world.on("front", front.do(new_call(world, front))), Offer)
    assert world.clock.now() - began < ALONE_AFTER_S + 0.1
    assert len([frame for frame in greeted if b"front" in frame]) <= ALONE_AFTER_S / SEARCH_S
