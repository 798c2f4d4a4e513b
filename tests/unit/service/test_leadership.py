"""Leadership changes when it must, and only then."""

import asyncio
from functools import partial

import pytest

from dispatcher.model.commands import Offer, Outcome, Over, Refused
from dispatcher.model.errors import NotAccepted, StoreUnavailable
from dispatcher.model.formats import NEWEST
from dispatcher.service import snapshots
from dispatcher.service.authentication import GREETING, HANDSHAKE_S
from dispatcher.service.frames import Hello, encode_frames, encode_message
from dispatcher.service.link.finder import connect
from dispatcher.service.link.link import settle
from dispatcher.shard.snapshot import dump
from tests.support.world.processes import (
    SHARD,
    ReadLink,
    World,
    accept,
    end,
    report,
    start_gates,
    start_worker,
    tailed,
)


async def traffic(world: World, front: ReadLink, worker: ReadLink, pause_s: float, times: int) -> list[float]:
    """Accept and end calls one after another; return how long each decision took."""
    latencies = []
    for _ in range(times):
        call = accept(front.new_id(), front.process, world.clock.now())
        began = world.clock.now()
        offer = await world.on(front.process, front.do(call))
        latencies.append(world.clock.now() - began)
        if isinstance(offer, Offer):
            await world.on(worker.process, worker.do(end(call.id, offer.attempt)))
        front.forget(call.id)
        await asyncio.sleep(pause_s)
    return latencies


async def running(world: World, *gates: str, slots: int = 100) -> tuple[ReadLink, ReadLink]:
    await start_gates(world, *gates)
    worker, front = await start_worker(world, slots), world.link("front")
    await asyncio.sleep(6)
    return front, worker


def takeovers(world: World) -> int:
    return sum(gate.takeovers for gate in world.gates.values())


async def test_no_takeover_without_a_fault_at_a_p99_of_100_ms() -> None:
    world = World(latency_s=tailed(0.1))
    front, worker = await running(world, "g1", "g2", "g3", "g4")
    await traffic(world, front, worker, 0.5, 1200)
    assert world.clock.now() > 1_000_000 + 600
    assert takeovers(world) == 1
    assert (await world.folded()).shard.epoch == 1


async def test_an_heir_that_is_cut_off_from_a_working_leader_does_not_take_over(world: World) -> None:
    front, worker = await running(world, "g1", "g2", "g3")
    world.network.cut("g1", "g2")
    await traffic(world, front, worker, 0.005, 1500)
    assert takeovers(world) == 1
    assert world.leaders == ["g1"]


async def test_processes_that_start_together_agree_on_one_leader(world: World) -> None:
    await asyncio.gather(*(world.gate(f"g{number}") for number in range(6)))
    await asyncio.sleep(3)
    assert len(world.leaders) == 1
    assert sorted(gate.rank for gate in world.gates.values()) == [-1, -1, -1, -1, 0, 1]


async def test_a_leader_that_the_store_does_not_answer_steps_down(world: World) -> None:
    front, worker = await running(world, "g1", "g2", "g3")
    world.faults["g1"].stalled = asyncio.Event()
    latencies = await traffic(world, front, worker, 0.01, 50)
    assert max(latencies) < 3.5
    assert world.leaders == ["g2"]
    world.faults["g1"].stalled.set()
    await asyncio.sleep(5)
    assert world.leaders == ["g2"]
    assert takeovers(world) == 2


async def test_a_leader_that_the_log_does_not_answer_refuses_new_work_only(world: World) -> None:
    front, worker = await running(world, "g1")
    call = accept(front.new_id(), "front", world.clock.now())
    offer = await world.on("front", front.do(call))
    world.faults["g1"].stalled = asyncio.Event()
    ending = world.host("worker").spawn(worker.do(end(call.id, offer.attempt)))
    await asyncio.sleep(1.5)
    began = world.clock.now()
    with pytest.raises(NotAccepted):
        await world.on("front", front.do(accept(front.new_id(), "front", world.clock.now())))
    assert world.clock.now() - began < 0.05
    world.faults["g1"].stalled.set()
    assert (await ending).outcome == "done"


async def test_a_refusal_of_a_second_copy_is_no_answer(world: World) -> None:
    """The first copy waits for the log when the connection breaks. The second is refused, and the first accepted."""
    front, _ = await running(world, "g1")
    await world.on("front", front.do(accept(front.new_id(), "front", world.clock.now())))
    world.faults["g1"].stalled = asyncio.Event()
    call = accept(front.new_id(), "front", world.clock.now())
    asking = world.host("front").spawn(front.do(call))
    await asyncio.sleep(1.3)
    assert front._route.channel is not None
    front._route.channel.close()
    with pytest.raises(StoreUnavailable) as caught:
        await asking
    assert not isinstance(caught.value, NotAccepted)
    world.faults["g1"].stalled.set()
    await asyncio.sleep(0.1)
    assert call.id in (await world.folded()).shard.state.calls


async def test_an_old_acceptance_is_refused(world: World) -> None:
    front, _ = await running(world, "g1")
    call = accept(front.new_id(), "front", world.clock.now())
    await world.on("front", front.do(call))
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    again = accept(front.new_id(), "front", world.clock.now())
    message = front._pending.add(again, partial(settle, outcome))
    front._route.send(message._replace(created_at=world.clock.now() - 61))
    refused = await outcome
    assert isinstance(refused, Refused)
    assert refused.code == "too_old"


async def test_an_heir_writes_snapshots_and_a_cold_process_begins_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ENTRIES", 300)
    front, worker = await running(world, "g1", "g2", "g3")
    await traffic(world, front, worker, 0.0, 500)
    await asyncio.sleep(70)
    await traffic(world, front, worker, 0.0, 500)
    await asyncio.sleep(70)
    log = world.data.logs["pool"]
    assert world.gates["g2"]._snapshots.written >= 2
    assert world.gates["g3"]._snapshots.written == 0
    hour = int(world.clock.now() // 3600)
    rows = [row for _, row in await world.store("reader").usage("acme", hour, hour)]
    assert [row.requests for row in rows] == [1000]
    a_day_ago = world.clock.now() - 25 * 3600
    log.written_at = dict.fromkeys(log.written_at, a_day_ago)
    log.manifests = {name: (manifest, a_day_ago) for name, (manifest, _) in log.manifests.items()}
    await traffic(world, front, worker, 0.0, 500)
    await asyncio.sleep(70)
    assert 0 not in log.entries
    assert (await world.folded()).shard.usage_rows()


async def test_a_process_ends_although_the_table_is_away(world: World) -> None:
    front, _ = await running(world, "g1")
    world.faults["g1"].away = True
    world.host("front").spawn(front.do(accept(front.new_id(), "front", world.clock.now())))
    await asyncio.sleep(0.5)
    world.gates["g1"].stop()
    assert "g1:1" in world.network.listeners
    await asyncio.sleep(6)
    assert "g1:1" not in world.network.listeners
    assert world.leaders == []


@pytest.mark.parametrize("name", ["leader", "follower"])
async def test_a_process_that_is_stopped_while_it_starts_ends_at_once(name: str) -> None:
    """While it takes over, or while it connects to the leader."""
    for steps in range(30):
        world = World(steps)
        if name == "follower":
            await start_gates(world, "leader")
        gate = await world.gate(name)
        await asyncio.sleep(0.0005 * steps)
        gate.stop()
        await asyncio.sleep(0.1)
        assert gate.address not in world.network.listeners
        assert (await world.folded()).shard.leader != gate.address


async def test_a_leader_alone_writes_snapshots(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ENTRIES", 300)
    front, worker = await running(world, "g1")
    await traffic(world, front, worker, 0.0, 500)
    await asyncio.sleep(30)
    assert world.gates["g1"]._snapshots.written == 1
    assert world.gates["g1"].replica.guard.is_calm is False


async def test_a_machine_that_vanishes_is_no_heir_and_no_client_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections do not break. While the leader counted it as its first heir, no process wrote snapshots."""
    monkeypatch.setattr(snapshots, "ENTRIES", 300)
    front, worker = await running(world, "g1", "g2", "g3")
    lost = world.link("lost")
    await world.on("lost", lost.do(accept(lost.new_id(), "lost", world.clock.now())))
    assert world.gates["g3"].rank == 1
    for name in ("g2", "lost"):
        world.network.cut("g1", name)
        world.host(name).kill()
    await asyncio.sleep(12)
    assert world.gates["g3"].rank == 0
    await traffic(world, front, worker, 0.0, 200)
    assert len(world.network.listeners["g1:1"].connections) == 3
    await asyncio.sleep(30)
    assert world.gates["g3"]._snapshots.written == 1


async def test_a_client_that_does_not_prove_its_secret_is_disconnected(world: World) -> None:
    await start_gates(world, "g1")
    connection = await world.network.transport("other").connect("g1:1")
    connection.send(GREETING + b"nonce")
    await asyncio.sleep(HANDSHAKE_S + 0.1)
    assert world.network.listeners["g1:1"].connections == []


async def test_an_older_connection_that_greets_late_and_breaks_takes_no_news_away(world: World) -> None:
    front, worker = await running(world, "g1")
    call = accept(front.new_id(), "front", world.clock.now())
    offer = await world.on("front", front.do(call))
    older = await world.on("front", connect(world.fleet("front"), world.gates["g1"].address))
    older.send(next(encode_frames([encode_message(Hello(NEWEST, "front", "client", ""))])))
    await asyncio.sleep(0.1)
    older.close()
    await asyncio.sleep(0.1)
    await world.on("worker", worker.do(end(call.id, offer.attempt)))
    assert isinstance(await world.on("front", front.news(call.id, 1.0)), Over)
    assert not (await world.folded()).shard.state.processes["front"].silent


async def test_a_worker_that_dies_behind_its_report_is_silent_at_once(world: World) -> None:
    """The report waits for the next entry, and the silence comes after it."""
    _, worker = await running(world, "g1")
    world.host("worker").spawn(worker.do(report("w1", 100)))
    await asyncio.sleep(0.01)
    world.host("worker").kill()
    await asyncio.sleep(0.5)
    assert (await world.folded()).shard.state.workers["w1"].config.state == "silent"


async def test_a_leader_that_loads_a_snapshot_leaves_no_caller_without_its_news(world: World) -> None:
    """After a jump of its clock by an hour a leader loads its state anew, without the news of the entries before."""
    front, _ = await running(world, "g1", "g2", slots=1)
    (leader,) = world.leaders
    first, second = (accept(front.new_id(), front.process, world.clock.now()) for _ in range(2))
    for call in (first, second):
        await world.on("front", front.do(call))
    other = world.replica("other")
    await other.commit([end(first.id, 1)])
    await world.store("other").log(SHARD).save_snapshot(other.shard.position, "n", dump(other.shard))
    world.gates[leader].replica._named = None
    over = await world.on("front", front.news(first.id, 3.0))
    assert isinstance(over, Over)
    offer = await world.on("front", front.news(second.id, 3.0))
    assert isinstance(offer, Offer)
    assert takeovers(world) == 1
