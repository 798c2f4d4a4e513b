"""Callers that leave, and commands without an answer: nothing is left behind, at any moment."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.commands import Cancel, Command, Outcome, Return
from dispatcher.model.errors import NotAccepted, StoreUnavailable, WorkerFailed
from dispatcher.operations.calls.answer import result_of
from dispatcher.operations.calls.call import accept_of
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.calls.ends import TAKE_BACK_MAX_S
from dispatcher.operations.calls.submit import Known
from dispatcher.operations.context import LASTING_S
from dispatcher.operations.store_patience import STORE_PATIENCE_S
from tests.support.world.in_process import OFFER_S
from tests.support.world.memory_gate import Gate
from tests.support.world.store_faults import Slow
from tests.support.world.story import (
    accepted,
    answered_again,
    begun,
    dispatched,
    followed,
    queued,
    read,
    submitted,
    take_slots,
)
from tests.support.world.worker_client import UNREACHABLE, Act, dies_after


@pytest.mark.parametrize("after_s", [0.0, 0.0995, 0.1, 0.1005, 0.3, 0.4])
@pytest.mark.parametrize("delay_s", [0.0, 0.01])
async def test_leaving_at_any_moment_leaves_nothing(gate: Gate, after_s: float, delay_s: float) -> None:
    """At 0.2 the slot that it waits for is freed, so that it is dispatched as its caller leaves."""
    busy = [begun(gate, "b", max_tokens=2) for _ in range(2)]
    await asyncio.sleep(0.001)
    gate.shard.delay_s = delay_s
    asking = begun(gate, "a", max_tokens=5)
    await asyncio.sleep(after_s)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.gather(*busy)
    await gate.quiet()
    assert not gate.ends("done")[2:]
    await asyncio.sleep(OFFER_S + 0.1)
    assert gate.workers.not_begun == []


@pytest.mark.parametrize("after_s", [0.01, 0.06, 0.11, 0.16, 0.21])
async def test_left_while_its_lost_attempt_is_being_returned_it_is_not_begun_again(gate: Gate, after_s: float) -> None:
    gate.add_worker("v")
    gate.shard.delay_s = 0.05
    gate.workers.acts.append(UNREACHABLE)
    asking = begun(gate, "a", max_tokens=20)
    await asyncio.sleep(after_s)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(1.0)
    await gate.quiet()
    assert gate.ends("done") == []
    assert gate.workers.not_begun == []


async def test_left_while_its_end_is_being_written_it_ends_all_the_same(gate: Gate) -> None:
    asking = begun(gate, "a")
    await asyncio.sleep(0.29)
    gate.shard.delay_s = 0.05
    await asyncio.sleep(0.03)
    asking.cancel()
    await asyncio.wait({asking})
    await gate.quiet()
    assert gate.spent("a") == 16.0


async def test_an_offer_for_a_caller_that_has_left_is_given_back_at_once(gate: Gate) -> None:
    busy = await take_slots(gate, max_tokens=1)
    waiting = await queued(gate, "a")
    gate.shard.delay_s = 0.05
    await asyncio.sleep(0.12)
    waiting.leave()  # its Cancel arrives after its dispatch
    await asyncio.sleep(0.3)
    assert [c.reason for c in gate.shard.commands if isinstance(c, Return)] == ["declined"]
    assert [c.outcome for c in gate.shard.commands if isinstance(c, Cancel)] == ["cancelled"]
    assert gate.shard.shard.state.calls == {}
    await busy


async def test_event_work_is_launched_if_its_caller_leaves_before_its_worker_answers(gate: Gate) -> None:
    """Its order may not have been sent: then its slot would be idle until the worker returns the attempt."""
    call = await dispatched(gate, "a", "k")
    call.leave()
    await gate.quiet()
    assert gate.launcher.launched == [(call.call.id, 1)]
    assert not await execute_detached(gate.process(), call.call.id)
    assert len(gate.ends("done")) == 1
    assert len(gate.workers.orders) == 1


async def test_event_work_that_its_worker_has_begun_is_not_launched(gate: Gate) -> None:
    call = await dispatched(gate, "a", "k")
    await asyncio.sleep(0.15)
    call.leave()
    await gate.quiet()
    assert gate.launcher.launched == []


async def test_leaving_while_the_gate_is_down_leaves_nothing_in_the_process(gate: Gate) -> None:
    busy = await take_slots(gate, max_tokens=5)
    waiting = [await queued(gate, "a"), await queued(gate, "a", "k")]
    gate.shard.down = True
    for call in waiting:
        call.leave()
    await asyncio.sleep(0.1)
    assert [name for name in gate.link().held if name in {call.call.id for call in waiting}] == []
    gate.shard.down = False
    for call in waiting:
        gate.shard.decide_cancel(call.call.id)
    await busy


async def test_a_gate_that_is_gone_while_an_attempt_is_returned_is_503(gate: Gate) -> None:
    gate.workers.acts.append(Act(unreachable=True))
    call = await accepted(gate, "a")
    gate.shard.down = True
    with pytest.raises(StoreUnavailable):
        await read(call)
    gate.shard.down = False
    gate.shard.decide_cancel(call.call.id)


async def test_a_lost_attempt_of_a_key_that_another_process_knows_is_left_to_others(gate: Gate) -> None:
    """The caller got a part of the lost attempt. The call goes on, and a repeat of the key gets the whole answer."""
    gate.workers.acts.append(dies_after(2))
    call = await dispatched(gate, "a", "k", stream=True)
    reading = asyncio.ensure_future(read(call))
    await asyncio.sleep(0.05)
    there = gate.process()
    known = await submitted(gate, "a", "k", context=there)
    assert isinstance(known, Known)
    gate.shard.decide(accept_of(call.call, "p0"))  # the first one holds it again
    with pytest.raises(WorkerFailed):
        await reading
    await asyncio.sleep(0.01)
    assert await execute_detached(gate.process(), gate.launcher.launched[-1][0])
    answer = await result_of(there, known)
    known.leave()
    assert answer is not None
    assert (answer.outcome, answer.output_tokens) == ("done", 3)


@pytest.mark.parametrize("lost_replies", [1, 2])
async def test_a_call_whose_acceptance_was_not_answered_is_taken_back(gate: Gate, lost_replies: int) -> None:
    gate.shard.replies_lost = lost_replies
    assert isinstance(await followed(gate, "a"), StoreUnavailable)
    await gate.quiet()
    assert not gate.shard.shard.state.calls
    assert not gate.workers.orders


async def test_a_durable_call_whose_acceptance_was_not_answered_is_executed_elsewhere(gate: Gate) -> None:
    gate.shard.replies_lost = 1
    assert isinstance(await followed(gate, "a", "k"), StoreUnavailable)
    await gate.quiet()
    (call,) = gate.shard.shard.state.calls.values()
    assert (call.process, gate.launcher.launched) == ("", [(call.id, 1)])
    gate.shard.decide_cancel(call.id)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.06])
async def test_a_call_that_is_taken_back_stays_with_a_repeat_of_its_key(gate: Gate, after_s: float) -> None:
    busy = await take_slots(gate, max_tokens=5)
    gate.shard.replies_lost, gate.shard.delay_s = 1, 0.05
    assert isinstance(await followed(gate, "a", "k"), StoreUnavailable)
    await asyncio.sleep(after_s)
    await answered_again(gate, "a", "k", wait_s=1.0)
    await busy
    assert gate.launcher.launched == []


async def test_a_call_is_taken_back_after_a_long_outage(gate: Gate) -> None:
    """Its Accept is in the log, and no process begins its offers."""
    busy = await take_slots(gate, max_tokens=400)
    gate.shard.replies_lost = 1
    assert isinstance(await followed(gate, "a"), StoreUnavailable)
    gate.shard.down = True
    await asyncio.sleep(30.0)
    assert [call.tenant.name for call in gate.shard.shard.state.calls.values()] == ["b", "b", "a"]
    gate.shard.down = False
    await asyncio.sleep(TAKE_BACK_MAX_S)
    assert [call.tenant.name for call in gate.shard.shard.state.calls.values()] == ["b", "b"]
    await busy


async def test_a_call_that_is_certainly_not_in_the_log_is_not_taken_back(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(command: Command) -> Outcome:
        raise NotAccepted("The log cannot be written.")

    await followed(gate, "a")  # the view of the fleet is fresh
    before = len(gate.shard.commands)
    monkeypatch.setattr(gate.link(), "do", refuse)
    assert isinstance(await followed(gate, "a"), NotAccepted)
    assert gate.context.lasting == set()
    monkeypatch.undo()
    await gate.quiet()
    assert len(gate.shard.commands) == before


async def test_the_end_of_a_front_does_not_wait_for_an_outage(gate: Gate) -> None:
    gate.shard.replies_lost = 1
    assert isinstance(await followed(gate, "a"), StoreUnavailable)
    gate.shard.down = True
    began = gate.clock.monotonic()
    await gate.context.finish()
    assert gate.clock.monotonic() - began <= 2 * LASTING_S
    gate.shard.down = False


async def test_a_caller_waits_for_the_store_for_a_bounded_time(gate: Gate) -> None:
    gate.store.faults = Slow(60.0, "put INV")
    began = gate.clock.monotonic()
    assert isinstance(await followed(gate, "a", "k"), StoreUnavailable)
    assert gate.clock.monotonic() - began == pytest.approx(STORE_PATIENCE_S)
