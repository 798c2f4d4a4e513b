"""A durable call that ends without an answer gets one at its end: its prompt is not kept longer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.model.commands import Cancel, Command, Done, End, Leave, Over, Return, Tick
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.service.gate.replica import Replica
from dispatcher.service.kept_answers import keep_answers
from dispatcher.shard import steps
from dispatcher.shard.codec import decode_entry
from tests.support.world.processes import SHARD, World, accept, report


async def accepted(world: World, *, slots: int) -> Replica:
    """Return a replica that accepted the durable call one-1, which waits if there are no slots."""
    replica = world.replica("one")
    now = world.clock.now()
    await replica.commit([report("w1", slots)])
    await world.store("one").create(
        Invocation("one-1", "acme", "k", "pool", "m", "f", now, now + 300, Endpoint.COMPLETION, "{}")
    )
    await replica.commit([accept("one-1", "one", now, durable=True)])
    return replica


async def answer_of(world: World) -> StoredAnswer:
    kept = await world.store("one").get("one-1")
    assert kept is not None
    assert kept.answer is not None
    assert kept.body is None
    return kept.answer


async def test_a_call_that_expires_in_its_queue_is_answered(world: World) -> None:
    replica = await accepted(world, slots=0)
    await world.clock.sleep(400)
    await replica.commit([Tick()])
    answer = await answer_of(world)
    assert answer.outcome == "expired"
    assert json.loads(answer.body)["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("slots", "commands", "outcome"),
    [
        pytest.param(0, [Cancel("one-1", "cancelled")], "cancelled", id="cancelled"),
        pytest.param(1, [Leave("w1"), report("w1", 1)] * 3, "failed", id="its last attempt lost"),
    ],
)
async def test_a_call_that_ends_without_an_answer_is_answered(
    world: World, slots: int, commands: list[Command], outcome: str
) -> None:
    replica = await accepted(world, slots=slots)
    for command in commands:
        await replica.commit([command])
    assert (await answer_of(world)).outcome == outcome


async def test_a_kept_answer_is_the_end_although_its_worker_and_its_leader_died(world: World) -> None:
    """The leader died between keeping the answer and writing the end, and the worker before it reported again."""
    replica = await accepted(world, slots=1)
    kept = StoredAnswer("done", 1, 7, 9, '{"text":"hello","reason":"stop"}', world.clock.now())
    await world.store("one").answer("one-1", kept)
    await world.clock.sleep(400)
    committed = await replica.commit([Leave("w1")])
    assert committed.outcomes == [Done()]
    assert replica.shard.state.ends["one-1"] == Over("one-1", 1, "done", 7, 9)
    row = replica.shard.usage_rows()[0]
    assert (row.input_tokens, row.output_tokens) == (7, 9)
    assert await answer_of(world) == kept


async def test_a_call_whose_answer_is_kept_does_not_wait_again(world: World) -> None:
    """Its only worker is lost long before its deadline. It could expire in its queue, beside its answer."""
    replica = await accepted(world, slots=1)
    kept = StoredAnswer("done", 1, 7, 9, '{"text":"hello","reason":"stop"}', world.clock.now())
    await world.store("one").answer("one-1", kept)
    await replica.commit([Leave("w1")])
    assert replica.shard.state.ends["one-1"] == Over("one-1", 1, "done", 7, 9)
    assert await answer_of(world) == kept


async def test_the_end_of_a_lost_attempt_stands_before_a_process_with_an_old_state_stores_another(world: World) -> None:
    """The worker was paused for longer than its lease, and reports its end itself before it has read the log."""
    replica, late = await accepted(world, slots=1), world.replica("late")
    await late.catch_up()
    await world.clock.sleep(400)
    await replica.commit([Leave("w1")])
    await late.commit([End("one-1", 1, "expired", 7, 9, "acme", '{"text":"hel"}')])
    assert replica.shard.state.ends["one-1"] == Over("one-1", 1, "expired")
    kept = await answer_of(world)
    assert (kept.outcome, kept.input_tokens, kept.output_tokens) == ("expired", 0, 0)


async def test_a_call_that_expires_in_its_queue_ends_with_the_answer_of_a_returned_attempt(world: World) -> None:
    """The answer was on its way to the store while another process returned the attempt."""
    replica = await accepted(world, slots=1)
    await replica.commit([Return("one-1", 1, "failed", "w1"), report("w1", 0)])
    kept = StoredAnswer("failed", 1, 7, 9, '{"status":500}', world.clock.now())
    await world.store("one").answer("one-1", kept)
    await world.clock.sleep(400)
    await replica.commit([Tick()])
    assert replica.shard.state.ends["one-1"] == Over("one-1", 1, "failed", 7, 9)
    (row,) = replica.shard.usage_rows()
    assert (row.requests, row.input_tokens, row.output_tokens) == (1, 7, 9)
    assert await answer_of(world) == kept
    other = world.replica("other")
    await other.catch_up()
    assert other.shard.usage_rows() == [row]


async def test_a_report_ends_as_the_kept_answer_of_its_attempt(world: World) -> None:
    """A process stored the end of the attempt as lost, and died before it wrote it to the log."""
    replica = await accepted(world, slots=1)
    kept = StoredAnswer("expired", 1, 0, 0, '{"status":504}', world.clock.now())
    await world.store("one").answer("one-1", kept)
    await replica.commit([End("one-1", 1, "done", 7, 9, "acme", '{"text":"hello"}')])
    assert replica.shard.state.ends["one-1"] == Over("one-1", 1, "expired")
    assert await answer_of(world) == kept


async def test_an_answer_that_cannot_be_kept_does_not_hold_up_the_end(world: World) -> None:
    """The log has the end. The next request for the answer keeps it (operations/calls/results.py)."""
    replica = await accepted(world, slots=0)
    answers = replica._answers
    assert answers is not None

    async def fail(_id: str, _answer: StoredAnswer) -> StoredAnswer | None:
        raise StoreUnavailable()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "answer", fail, raising=False)
        committed = await replica.commit([Cancel("one-1", "cancelled")])
    assert committed.outcomes == [Over("one-1", 0, "cancelled")]
    assert "one-1" not in replica.shard.state.calls


async def test_an_end_is_decided_anew_if_the_state_is_loaded_again_after_its_answer_is_kept(world: World) -> None:
    """Else the entry has the time of the decision before, which is earlier than that of the entry before it."""
    replica, other = await accepted(world, slots=1), world.replica("two")
    keep, undo = keep_answers, steps._undo_end
    with pytest.MonkeyPatch.context() as patch:

        async def keep_late(*arguments: Any) -> list[Command]:
            await world.clock.sleep(5.0)
            await other.commit([accept("two-1", "two", world.clock.now())])
            return await keep(*arguments)

        def fail_once(*_: Any) -> None:
            patch.setattr(steps, "_undo_end", undo)
            raise RuntimeError("an error of the code")

        patch.setattr("dispatcher.service.gate.replica.keep_answers", keep_late)
        patch.setattr(steps, "_undo_end", fail_once)
        (outcome,) = (await replica.commit([End("one-1", 1, "done", 7, 9, "acme", '{"text":"hello"}')])).outcomes
    assert outcome == Over("one-1", 1, "done", 7, 9)
    entries = world.data.logs[SHARD].entries.values()
    times = [decode_entry(data).at for data in entries]
    assert times == sorted(times)
    assert "two-1" in replica.shard.state.calls
