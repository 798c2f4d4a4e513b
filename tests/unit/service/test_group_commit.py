"""Group commit: what arrives during an append goes into the next entry, and ticks come when they are due."""

import asyncio

from dispatcher.model.commands import Offer, Outcome, Over, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.service.gate.follower import Delivery
from dispatcher.service.gate.group_commit import PATIENT_S, GroupCommit, no_reply
from dispatcher.service.gate.replica import COMMANDS_MAX, Replica
from tests.support.world.processes import World, accept, end, report


async def committing(
    world: World, epoch: int | None = 0
) -> tuple[Replica, GroupCommit, list[Delivery], list[StoreUnavailable]]:
    """Start a group commit of a process with one worker of two slots."""
    replica = world.replica("one")
    await replica.commit([report("w1", 2)])
    delivered: list[Delivery] = []
    failed: list[StoreUnavailable] = []

    def fail(error: StoreUnavailable, commits: GroupCommit) -> None:
        failed.append(error)
        for item in commits.take_all():
            item.reply(error)

    commits = GroupCommit(replica, world.clock, delivered.extend, fail, epoch)
    world.host("one").spawn(commits.run())
    return replica, commits, delivered, failed


def overs(delivered: list[Delivery]) -> list[Over]:
    """Return the news that were delivered. All of them are ends."""
    news = [each.news for each in delivered if isinstance(each.news, Over)]
    assert len(news) == len(delivered)
    return news


async def test_commands_that_arrive_during_an_append_share_the_next_entry(world: World) -> None:
    replica, commits, delivered, _ = await committing(world)
    before = replica.shard.position
    outcomes: list[Outcome | StoreUnavailable] = []
    commits.add(accept("one-1", "one", world.clock.now()), outcomes.append)
    await asyncio.sleep(0.001)
    for number in range(2, 52):
        commits.add(accept(f"one-{number}", "one", world.clock.now()), outcomes.append)
    await asyncio.sleep(0.1)
    assert replica.shard.position == before + 2
    assert [type(outcome) for outcome in outcomes] == [Offer, Offer, *[Waiting] * 49]
    assert delivered == []
    commits.add(end("one-1", 1), outcomes.append)
    await asyncio.sleep(0.1)
    assert [(each.process, type(each.news), each.news.id) for each in delivered] == [
        ("one", Over, "one-1"),
        ("one", Offer, "one-3"),
    ]


async def test_a_patient_command_waits_for_an_entry_that_is_written_anyway(world: World) -> None:
    _, commits, _, _ = await committing(world)
    answered: list[float] = []
    began = world.clock.now()
    commits.add(report("w1", 2), lambda outcome: answered.append(world.clock.now() - began), urgent=False)
    await asyncio.sleep(0.05)
    assert not answered
    commits.add(accept("one-1", "one", world.clock.now()), no_reply)
    await asyncio.sleep(0.05)
    assert answered[0] < PATIENT_S
    began = world.clock.now()
    commits.add(report("w1", 2), lambda outcome: answered.append(world.clock.now() - began), urgent=False)
    await asyncio.sleep(0.5)
    assert PATIENT_S < answered[1] < PATIENT_S + 0.05


async def test_a_patient_command_is_written_although_each_entry_is_full() -> None:
    """A heartbeat without an answer for seconds would make its worker abort all of its work."""
    world = World(latency_s=lambda random: 0.05)
    _, commits, _, _ = await committing(world)
    answered: list[float] = []
    began, number = world.clock.now(), 0
    commits.add(report("w1", 2), lambda outcome: answered.append(world.clock.now() - began), urgent=False)
    for _ in range(100):
        while commits.waiting <= COMMANDS_MAX:
            number += 1
            commits.add(accept(f"one-{number}", "one", began, waiting_max=100_000), no_reply)
        await asyncio.sleep(0.01)
    assert number > 10 * COMMANDS_MAX
    assert answered
    assert answered[0] < PATIENT_S + 2 * 0.05 + 0.01


async def test_deadlines_are_decided_without_commands(world: World) -> None:
    _, commits, delivered, _ = await committing(world)
    for number in range(1, 4):
        commits.add(accept(f"one-{number}", "one", world.clock.now(), deadline_at=world.clock.now() + 8), no_reply)
    await asyncio.sleep(9)
    assert [(over.id, over.outcome) for over in overs(delivered)] == [("one-3", "expired")]


async def test_a_doubtful_clock_decides_no_deadline(world: World) -> None:
    replica, commits, delivered, _ = await committing(world)
    for number in range(1, 4):
        commits.add(accept(f"one-{number}", "one", world.clock.now(), deadline_at=world.clock.now() + 8), no_reply)
    await asyncio.sleep(7)
    replica.guard.stay_calm()
    await asyncio.sleep(4)
    assert delivered == []
    await asyncio.sleep(3)
    assert [over.outcome for over in overs(delivered)] == ["expired"]


async def test_commands_fail_if_the_log_cannot_be_read(world: World) -> None:
    _, commits, _, failed = await committing(world, epoch=None)
    world.faults["one"].away = True
    outcomes: list[Outcome | StoreUnavailable] = []
    commits.add(end("one-9", 1), outcomes.append)
    await asyncio.sleep(1)
    assert isinstance(outcomes[0], StoreUnavailable)
    assert len(failed) == 1
    world.faults["one"].away = False
    commits.add(accept("one-1", "one", world.clock.now()), outcomes.append)
    await asyncio.sleep(1)
    assert isinstance(outcomes[1], Offer)
