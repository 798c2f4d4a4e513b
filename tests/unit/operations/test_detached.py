"""Durable calls that no caller waits for: any process executes them, once, whatever becomes of the message."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.model.commands import Gone, Return, Silent, Status, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.kept import StoredAnswer
from dispatcher.operations.calls.detached import HOLD_S, execute_detached, serve_launched
from tests.support.world.memory_gate import Gate
from tests.support.world.story import begun, followed, queued, take_slots
from tests.support.world.worker_client import SHED, Act, dies_after, refuses


async def launched(gate: Gate, key: str = "k") -> str:
    """Let a durable call go that waits, see it launched, and return its id."""
    busy = await take_slots(gate, max_tokens=1)
    waiting = await queued(gate, "a", key)
    waiting.leave()
    await busy
    await asyncio.sleep(0)
    await gate.shard.settle()
    assert gate.launcher.launched[-1] == (waiting.call.id, 1)
    return waiting.call.id


async def test_it_is_executed_by_another_process_from_its_item(gate: Gate) -> None:
    call_id = await launched(gate)
    assert await execute_detached(gate.process(), call_id)
    answer = await gate.ended("a", "k", "done")
    assert json.loads(answer.body) == {"choices": [{"text": "xxx", "reason": "length"}]}
    assert (gate.spent("a"), (await gate.item("a", "k")).body) == (16.0, None)


@pytest.mark.parametrize("call_id", ["p0-999", "never-1", "", "a/b"])
async def test_a_message_that_names_nothing_does_nothing(gate: Gate, call_id: str) -> None:
    assert not await execute_detached(gate.context, call_id)
    assert gate.shard.commands[1:] == []


async def test_a_call_whose_answer_is_kept_and_whose_end_is_not_written_is_ended(gate: Gate) -> None:
    call_id = await launched(gate)
    await gate.context.store.answer(call_id, StoredAnswer("done", 1, 10, 2, '{"text":"xx","reason":"stop"}', 0.0))
    assert not await execute_detached(gate.process(), call_id)
    assert not gate.shard.shard.state.calls
    (ended,) = [each for each in gate.ends("done") if each.id == call_id]
    assert (ended.input_tokens, ended.output_tokens) == (10, 2)


async def test_so_is_one_that_waits(gate: Gate) -> None:
    """Its attempt was returned as not begun. Until its end it would wait for an executor that takes it over."""
    call_id = await launched(gate)
    gate.shard.decide(Return(call_id, 1, "not_begun", "w"))
    await gate.context.store.answer(call_id, StoredAnswer("failed", 1, 10, 2, '{"status":500}', 0.0))
    assert isinstance(gate.shard.decide(Status(call_id)), Waiting)
    assert not await execute_detached(gate.process(), call_id)
    assert call_id not in gate.shard.shard.state.calls


async def test_a_call_is_followed_once_in_a_process(gate: Gate) -> None:
    """The message comes while a caller of the same key begins to wait."""
    call_id = await launched(gate)
    gate.workers.acts.append(Act(token_s=0.1))
    executing = [asyncio.ensure_future(execute_detached(gate.context, call_id)) for _ in range(2)]
    repeated = begun(gate, "a", "k")
    await asyncio.wait({*executing, repeated})
    assert not gate.context.durable_calls
    assert not gate.context.tasks
    assert sum(task.result() for task in executing) <= 1


async def test_a_process_that_was_given_up_executes_its_call_when_it_is_launched(gate: Gate) -> None:
    busy = await take_slots(gate, max_tokens=1)
    waiting = begun(gate, "a", "k")
    await asyncio.sleep(0.01)
    gate.shard.decide(Silent(gate.pool.link.process, False))
    gate.shard.decide(Gone(gate.pool.link.process, False))
    await busy
    await gate.shard.settle()
    ((call_id, _),) = gate.launcher.launched
    assert not await execute_detached(gate.context, call_id)
    await waiting
    await gate.ended("a", "k", "done")
    assert [order.attempt for _, order in gate.workers.orders if order.terms.tenant == "a"] == [1]


async def test_what_a_caller_of_this_process_waits_for_is_left_to_it(gate: Gate) -> None:
    waiting = begun(gate, "a", "k")
    await asyncio.sleep(0.05)
    assert not await execute_detached(gate.context, (await gate.item("a", "k")).id)
    await waiting
    assert len(gate.workers.orders) == 1


async def test_an_attempt_that_was_returned_meanwhile_is_executed_when_it_is_offered_again(gate: Gate) -> None:
    """The message was slow: the worker fenced the offer, and other requests took the slot."""
    call_id = await launched(gate)
    await asyncio.sleep(1.5)
    busy = [begun(gate, "b", max_tokens=20) for _ in range(3)]
    await asyncio.sleep(1.0)
    assert gate.workers.not_begun == [f"{call_id}#1"]
    assert await execute_detached(gate.context, call_id)
    answer = await gate.ended("a", "k", "done")
    assert answer.attempt > 1
    await asyncio.gather(*busy)


async def test_it_is_let_go_again_if_no_offer_comes(gate: Gate) -> None:
    call_id = await launched(gate)
    gate.shard.report("w", draining=True)
    await asyncio.sleep(2.5)
    started = gate.clock.now()
    assert not await execute_detached(gate.context, call_id)
    assert gate.clock.now() - started == pytest.approx(HOLD_S, abs=0.1)
    await gate.quiet()
    gate.shard.report("w")
    await gate.shard.settle()
    assert gate.launcher.launched[-1] == (call_id, 2)
    assert await execute_detached(gate.context, call_id)


async def test_a_lost_attempt_is_tried_again_also_after_its_first_token(gate: Gate) -> None:
    call_id = await launched(gate)
    gate.workers.acts.append(dies_after(1))
    assert await execute_detached(gate.context, call_id)
    answer = await gate.ended("a", "k", "done")
    assert (answer.attempt, gate.spent("a")) == (2, 16.0)


@pytest.mark.parametrize("act", [refuses(400, "context_length_exceeded"), SHED])
async def test_it_ends_with_the_workers_answer(gate: Gate, act: object) -> None:
    call_id = await launched(gate)
    gate.workers.acts.append(act)  # type: ignore[arg-type]
    assert await execute_detached(gate.context, call_id)
    answer = await gate.ended("a", "k", "failed")
    assert json.loads(answer.body)["status"] in (400, 429)
    assert gate.spent("a") == 0.0


async def test_where_the_gate_cannot_be_reached_the_message_comes_again(gate: Gate) -> None:
    call_id = await launched(gate)
    gate.shard.down = True
    with pytest.raises(StoreUnavailable):
        await execute_detached(gate.context, call_id)
    gate.shard.down = False
    assert await execute_detached(gate.context, call_id)
    await gate.ended("a", "k", "done")


async def test_a_deleted_tenants_call_is_cancelled(gate: Gate) -> None:
    call_id = await launched(gate)
    await gate.store.delete_tenant("a")
    assert not await execute_detached(gate.process(), call_id)
    await asyncio.sleep(3)
    assert gate.shard.shard.state.calls == {}


async def test_a_process_that_stays_executes_what_the_leader_gives_it(gate: Gate) -> None:
    serving = asyncio.ensure_future(serve_launched(gate.context, gate.pool))
    call_id = await launched(gate)
    gate.link().launches.put_nowait((call_id, 1))
    await asyncio.sleep(1)
    await gate.ended("a", "k", "done")
    serving.cancel()
    assert await followed(gate, "a")
