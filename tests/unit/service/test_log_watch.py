"""Which commands fail when the log cannot be used, and what a refusal says about the log's content."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from dispatcher.model.commands import Accept, Done, Offer, Outcome, Present, Refused, Status
from dispatcher.model.errors import STORE_UNAVAILABLE, NotAccepted, StoreUnavailable
from dispatcher.service.gate.group_commit import STALLED_S, WATCH_MAX_S, no_reply, unwritten
from dispatcher.service.link.link import settle
from dispatcher.service.link.pending import COMMAND_S, LOG_PATIENCE_S, STEP_S, LogWatch, Pending
from tests.support.world.processes import World, accept, end, report, start_worker
from tests.support.world.virtual_time import LoopClock
from tests.unit.service.test_group_commit import committing


def waiting(*commands: object) -> tuple[Pending, list[asyncio.Future[Outcome]]]:
    pending = Pending(LoopClock())
    outcomes = [asyncio.get_running_loop().create_future() for _ in commands]
    for command, outcome in zip(commands, outcomes, strict=True):
        pending.add(command, partial(settle, outcome))  # type: ignore[arg-type]
    return pending, outcomes


def call(number: int) -> Accept:
    return accept(f"p-{number}", "p", 0.0)


async def test_the_commands_of_callers_fail_after_the_patience_and_others_wait_on() -> None:
    pending, (first, silent, status) = waiting(call(1), Present("p"), Status("p-1"))
    pending.sent(1)
    pending.watch.counted_s = LOG_PATIENCE_S - 0.01
    assert pending.fail_overdue()
    assert not first.done()
    pending.watch.counted_s = LOG_PATIENCE_S
    assert pending.fail_overdue()
    assert [type(outcome.exception()) for outcome in (first, status)] == [StoreUnavailable, NotAccepted]
    assert not silent.done()


async def test_every_command_fails_after_a_time_also_if_the_log_is_not_to_blame() -> None:
    pending, (older,) = waiting(Present("p"))
    await asyncio.sleep(COMMAND_S / 2)
    newer: list[object] = []
    pending.add(Present("p"), newer.append)
    await asyncio.sleep(COMMAND_S / 2)
    assert pending.fail_overdue()
    assert type(older.exception()) is StoreUnavailable
    assert newer == []


async def test_an_outcome_begins_the_count_anew_and_a_refusal_does_not() -> None:
    pending, outcomes = waiting(call(1), call(2), call(3))
    pending.watch.counted_s = 1.0
    pending.resolve(1, Refused("p-1", "queue_full", "Full.", 1.0))
    assert pending.longest_s == 1.0
    pending.resolve(2, Done())
    assert pending.longest_s == 0.0
    pending.watch.counted_s += LOG_PATIENCE_S - 0.01
    assert pending.fail_overdue()
    assert not outcomes[2].done()


@pytest.mark.parametrize(("copies", "kind"), [(1, NotAccepted), (2, StoreUnavailable)])
async def test_a_refusal_for_the_log_is_certain_for_the_only_copy(copies: int, kind: type[Exception]) -> None:
    pending, (outcome,) = waiting(call(1))
    for _ in range(copies):
        pending.sent(1)
    pending.resolve(1, unwritten(call(1)))
    assert type(outcome.exception()) is kind


async def test_a_pause_of_the_process_is_no_silence_of_the_log() -> None:
    class Paused(LoopClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(10.0)

    watch, steps = LogWatch(Paused()), iter([True, True, False])
    await watch.run(lambda: True, lambda: next(steps))
    assert watch.counted_s == pytest.approx(2 * 2 * STEP_S)


async def test_only_calls_in_no_entry_are_withdrawn(world: World) -> None:
    """The entry that is being written may be in the log: its calls keep their place."""
    _, commits, _, _ = await committing(world)
    world.faults["one"].stalled = asyncio.Event()
    got: dict[str, list[object]] = {"written": [], "later": [], "end": []}
    commits.add(accept("one-5", "one", world.clock.now()), got["written"].append)
    commits.watch()
    await asyncio.sleep(0.1)
    commits.add(accept("one-6", "one", world.clock.now()), got["later"].append)
    commits.add(end("one-9", 1), got["end"].append)
    for _ in range(6):
        commits.watch()
        await asyncio.sleep(0.25)
    assert commits.is_stalled
    commits.withdraw()
    assert [(type(each), each.code) for each in got["later"] if isinstance(each, Refused)] == [
        (Refused, STORE_UNAVAILABLE)
    ]
    assert got["written"] == got["end"] == []
    world.faults["one"].stalled.set()
    await asyncio.sleep(0.5)
    assert len(got["written"]) == len(got["end"]) == 1
    calls = (await world.folded()).shard.state.calls
    assert "one-5" in calls
    assert "one-6" not in calls
    commits.watch()
    assert not commits.is_stalled


async def test_a_pause_of_the_leader_does_not_stall_its_entry(world: World) -> None:
    _, commits, _, _ = await committing(world)
    world.faults["one"].stalled = asyncio.Event()
    commits.add(report("w"), no_reply)
    await asyncio.sleep(0.1)
    commits.watch()
    await asyncio.sleep(10.0)
    commits.watch()
    assert WATCH_MAX_S < STALLED_S
    assert not commits.is_stalled


async def test_a_process_alone_says_whether_the_log_can_contain_a_call(world: World) -> None:
    """A log that cannot be read contains nothing of it; an append without a reply may."""
    await start_worker(world)
    front = world.link("front")
    await world.on("front", front.do(accept(front.new_id(), "front", world.clock.now())))
    world.faults["front"].is_deaf, world.faults["front"].only = True, frozenset({"append"})
    with pytest.raises(StoreUnavailable) as unknown:
        await world.on("front", front.do(accept(front.new_id(), "front", world.clock.now())))
    assert type(unknown.value) is StoreUnavailable
    with pytest.raises(NotAccepted):
        await world.on("front", front.do(accept(front.new_id(), "front", world.clock.now())))
    world.faults["front"].is_deaf = False
    await asyncio.sleep(5.0)
    assert sorted((await world.folded()).shard.state.calls) == ["front-1", "front-2"]


async def test_a_cold_process_has_the_time_to_load_a_snapshot(world: World) -> None:
    """It is alone, and the log answers: the time does not count against the log."""
    await start_worker(world)
    front = world.link("front")
    world.faults["front"].only, world.faults["front"].stalled = frozenset({"load_snapshot"}), asyncio.Event()
    asking = world.host("front").spawn(front.do(accept(front.new_id(), "front", world.clock.now())))
    await asyncio.sleep(2 * LOG_PATIENCE_S)
    assert not asking.done()
    world.faults["front"].stalled.set()
    assert isinstance(await asking, Offer)
