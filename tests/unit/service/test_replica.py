"""Replicas that write to the same log: each decision counts once, and all agree."""

import asyncio

import pytest

from dispatcher.model.commands import Accept, Offer, Outcome, Over, Refused, Status, Unknown, Waiting
from dispatcher.model.errors import LogGap, StoreUnavailable
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.service.gate.follower import POSITION_MAX_AGE_S
from dispatcher.service.gate.replica import COMMANDS_MAX, Deposed, Replica
from dispatcher.shard.snapshot import dump
from tests.support.world.processes import SHARD, World, accept, end, report


async def joined(world: World, name: str, *workers: tuple[str] | tuple[str, int]) -> Replica:
    replica = world.replica(name)
    await replica.commit([report(*worker) for worker in workers])
    return replica


async def test_interleaved_replicas_agree(world: World) -> None:
    one, two = await joined(world, "one", ("w1", 3)), world.replica("two")
    now = world.clock.now()

    async def busy(replica: Replica, name: str) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for number in range(1, 21):
            committed = await replica.commit([accept(f"{name}-{number}", name, now)])
            outcomes += committed.outcomes
        return outcomes

    outcomes = await asyncio.gather(busy(one, "one"), busy(two, "two"))
    assert sum(isinstance(outcome, Offer) for outcome in [*outcomes[0], *outcomes[1]]) == 3
    await one.catch_up()
    await two.catch_up()
    assert dump(one.shard) == dump(two.shard) == dump((await world.folded()).shard)
    assert one.shard.position == 41


async def test_commands_join_after_a_lost_position(world: World) -> None:
    one, two = await joined(world, "one", ("w1", 3)), world.replica("two")
    await two.catch_up()
    now = world.clock.now()
    rooms: list[int] = []
    await one.commit([accept("one-1", "one", now)])

    def more(room: int) -> list[Accept]:
        rooms.append(room)
        return [accept("two-2", "two", now)] if len(rooms) == 1 else []

    committed = await two.commit([accept("two-1", "two", now)], more=more)
    offers = [outcome for outcome in committed.outcomes if isinstance(outcome, Offer)]
    assert [offer.id for offer in offers] == ["two-1", "two-2"]
    assert len(committed.outcomes) == 2
    assert rooms == [COMMANDS_MAX - 1]
    assert two.shard.position == 3


async def test_a_process_that_lost_reads_first(world: World) -> None:
    one, two = await joined(world, "one", ("w1", 3)), world.replica("two")
    await two.catch_up()
    now = world.clock.now()
    await one.commit([accept("one-1", "one", now)])
    await two.commit([accept("two-1", "two", now)])
    await one.commit([accept("one-2", "one", now)])
    await world.clock.sleep(1.0)
    written = two.entries_written
    await two.commit([accept("two-2", "two", now)])
    assert two.entries_written == written + 1
    assert (await world.folded()).shard.position == 5


async def test_a_lost_reply_is_recognised(world: World) -> None:
    one = await joined(world, "one", ("w1",))
    world.faults["one"].lost.append("append")
    committed = await one.commit([accept("one-1", "one", world.clock.now())])
    assert isinstance(committed.outcomes[0], Offer)
    assert one.shard.position == 2
    assert [delivery.process for delivery in committed.deliveries] == ["one"]


async def test_a_lost_reply_whose_position_another_process_saw(world: World) -> None:
    one, two = await joined(world, "one", ("w1",)), world.replica("two")
    world.faults["one"].lost.append("append")
    now = world.clock.now()
    first, second = await asyncio.gather(
        one.commit([accept("one-1", "one", now)]), two.commit([accept("two-1", "two", now)])
    )
    assert isinstance(first.outcomes[0], Offer)
    assert isinstance(second.outcomes[0], Offer)
    await one.catch_up()
    await two.catch_up()
    assert dump(one.shard) == dump(two.shard)


async def test_answers_without_facts_come_from_the_tail(world: World) -> None:
    one, two = await joined(world, "one", ("w1",)), world.replica("two")
    await two.catch_up()
    await one.commit([accept("one-1", "one", world.clock.now())])
    assert isinstance((await two.commit([Status("one-1")])).outcomes[0], Offer)
    await one.commit([end("one-1", 1)])
    assert (await two.commit([end("one-1", 1)])).outcomes == [Over("one-1", 1, "done", 10, 20)]
    assert isinstance((await two.commit([Status("one-9")])).outcomes[0], Unknown)


async def test_a_leader_refuses_without_a_read(world: World) -> None:
    one = world.replica("one")
    assert await one.take_over("one:1", 0)
    reads = world.faults["one"]
    reads.away = True
    refused = (await one.commit([accept("one-1", "one", world.clock.now())], epoch=1)).outcomes[0]
    assert isinstance(refused, Refused)
    assert refused.code == "no_worker"


async def test_without_a_leader_a_refusal_comes_from_the_tail(world: World) -> None:
    one = world.replica("one")
    await one.catch_up()
    await joined(world, "two", ("w1",))
    assert isinstance((await one.commit([accept("one-1", "one", world.clock.now())])).outcomes[0], Offer)


async def test_many_commands_are_split(world: World) -> None:
    one = await joined(world, "one", ("w1",))
    now = world.clock.now()
    committed = await one.commit([accept(f"one-{number}", "one", now) for number in range(1, 1001)])
    assert sum(isinstance(outcome, Offer) for outcome in committed.outcomes) == 4
    assert sum(isinstance(outcome, Waiting) for outcome in committed.outcomes) == 996
    assert one.shard.position == 4


async def test_a_position_older_than_an_hour_does_not_count(world: World) -> None:
    one, two = await joined(world, "one", ("w1",)), world.replica("two")
    await two.catch_up()
    position = two.shard.position
    await one.commit([accept("one-1", "one", world.clock.now())])
    await world.store("one").log("pool").save_snapshot(one.shard.position, "nonce", dump(one.shard))
    await asyncio.sleep(POSITION_MAX_AGE_S + 1)
    log = world.data.logs["pool"]
    log.expire(range(log.end))
    committed = await two.commit([accept("two-1", "two", world.clock.now())])
    assert isinstance(committed.outcomes[0], Offer)
    assert two.shard.position == one.shard.position + 1
    assert position not in log.entries


async def test_a_table_that_was_away_for_over_an_hour(world: World) -> None:
    one = await joined(world, "one", ("w1",))
    world.faults["one"].away = True
    commit = asyncio.create_task(one.commit([accept("one-1", "one", world.clock.now())]))
    await asyncio.sleep(POSITION_MAX_AGE_S + 1)
    world.faults["one"].away = False
    with pytest.raises(StoreUnavailable):
        await commit
    assert isinstance((await one.commit([Status("one-1")])).outcomes[0], Offer)


async def test_a_cancelled_commit_leaves_the_state_as_it_was(world: World) -> None:
    one = await joined(world, "one", ("w1",))
    commit = asyncio.create_task(one.commit([accept("one-1", "one", world.clock.now())]))
    await asyncio.sleep(0.003)
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    await one.commit([accept("one-2", "one", world.clock.now())])
    assert dump(one.shard) == dump((await world.folded()).shard)


async def test_a_leader_is_deposed_by_a_later_epoch(world: World) -> None:
    one, two = await joined(world, "one", ("w1",)), world.replica("two")
    assert await one.take_over("one:1", 0)
    assert not await two.take_over("two:1", 0)
    assert await two.take_over("two:1", 1)
    with pytest.raises(Deposed):
        await one.commit([accept("one-1", "one", world.clock.now())], epoch=1)
    assert one.shard.leader == "two:1"
    assert not one.shard.state.calls


async def test_the_answer_of_a_durable_call_is_kept_before_its_end(world: World) -> None:
    one = await joined(world, "one", ("w1",))
    now = world.clock.now()
    await world.store("one").create(
        Invocation("one-1", "acme", "key", "pool", "m", "f", now, now + 300, Endpoint.COMPLETION, "{}")
    )
    await one.commit([accept("one-1", "one", now, durable=True)])
    over = await one.commit([end("one-1", 1)._replace(answer='{"text":"hello","reason":"stop"}')])
    assert over.outcomes == [Over("one-1", 1, "done", 10, 20)]
    kept = await world.store("one").get("one-1")
    assert kept is not None
    assert kept.answer is not None
    assert kept.answer.body == '{"text":"hello","reason":"stop"}'


async def test_an_answer_of_an_earlier_attempt_stands(world: World) -> None:
    one = await joined(world, "one", ("w1",))
    now, store = world.clock.now(), world.store("one")
    await store.create(Invocation("one-1", "acme", "key", "pool", "m", "f", now, now + 300, Endpoint.COMPLETION, "{}"))
    await one.commit([accept("one-1", "one", now, durable=True)])
    await store.answer("one-1", StoredAnswer("done", 0, 7, 9, "{}", now))
    await one.commit([end("one-1", 1)._replace(answer='{"text":"late"}')])
    row = one.shard.usage_rows()[0]
    assert (row.input_tokens, row.output_tokens) == (7, 9)


# ── A log with a gap: no process takes the entry before the gap for the last one, or writes into the gap ─────────────


async def written(world: World, entries: int) -> Replica:
    replica = world.replica("one")
    for number in range(entries):
        await replica.commit([report(f"w{number}")])
    return replica


async def test_a_process_that_finds_a_gap_stops_and_names_the_position(world: World) -> None:
    await written(world, 6)
    world.data.logs[SHARD].expire([3])
    two = world.replica("two")
    for _ in range(2):
        with pytest.raises(LogGap, match=f"log of {SHARD} has no entry 3, .* no snapshot above it"):
            await two.commit([accept("two-1", "two", world.clock.now())])
    assert 3 not in world.data.logs[SHARD].entries
    assert world.data.logs[SHARD].end == 6


async def test_a_snapshot_above_the_gap_leads_past_it(world: World) -> None:
    one = await written(world, 6)
    late = world.replica("late")
    log = world.store("late").log(SHARD)
    await late.catch_up()
    for number in range(6, 9):
        await one.commit([report(f"w{number}")])
    await log.save_snapshot(one.shard.position, "n", dump(one.shard))
    await one.commit([report("w9")])
    world.data.logs[SHARD].expire([7])
    await late.catch_up()
    assert dump(late.shard) == dump(one.shard)


async def test_a_snapshot_below_the_gap_does_not(world: World) -> None:
    one = await written(world, 4)
    await world.store("one").log(SHARD).save_snapshot(4, "n", dump(one.shard))
    for number in range(4, 9):
        await one.commit([report(f"w{number}")])
    world.data.logs[SHARD].expire([6])
    with pytest.raises(LogGap, match="no entry 6"):
        await world.replica("two").catch_up()
