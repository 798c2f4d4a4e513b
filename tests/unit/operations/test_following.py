"""A call's task: offers begun at once, lost attempts, fenced streams, one end, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest

from dispatcher.model.commands import Cancel, End, Gone, Offer, Return
from dispatcher.model.errors import (
    DeadlineExceeded,
    Preempted,
    Refused,
    StoreUnavailable,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.invocation import Answer
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder
from dispatcher.operations.answer import result_of
from dispatcher.operations.answer_events import EVENTS_AHEAD_MAX
from dispatcher.operations.calls import Collected, accept_of
from dispatcher.operations.detached import execute_detached
from dispatcher.operations.following import LATE_S
from dispatcher.operations.submit import Known
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from tests.support.gate.in_process import OFFER_S
from tests.support.gate.memory_gate import Gate
from tests.support.gate.story import accepted, asked, begun, dispatched, followed, queued, read, submitted
from tests.support.gate.worker_client import FULL, SHED, UNREACHABLE, Act, ScriptedWorkers, dies_after, refuses


def lost(gate: Gate, call_id: str, attempt: int) -> None:
    """The gate learns that the attempt is lost, while its stream goes on."""
    gate.shard.decide(Return(call_id, attempt, "lost", gate.shard.shard.state.calls[call_id].worker))


# ── Attempts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("act", [UNREACHABLE, FULL, dies_after(0), refuses(500), refuses(401), Act(aborts_after=0)])
async def test_what_says_nothing_of_the_request_is_tried_elsewhere_under_the_next_number(
    gate: Gate, act: Act, key: str
) -> None:
    gate.add_worker("v")
    gate.workers.acts.append(act)
    assert isinstance(await followed(gate, "a", key), Collected)
    await gate.quiet()
    (first, one), (second, two) = gate.workers.orders
    assert (first != second, one.attempt, two.attempt) == (True, 1, 2)
    assert gate.spent("a") == 16.0


@pytest.mark.parametrize(
    "act", [dies_after(2), Act(aborts_after=2), Act(ends_silently_after=2)], ids=["dies", "aborts", "ends"]
)
@pytest.mark.parametrize("key", ["", "k"])
async def test_what_a_stream_delivered_is_charged_and_not_tried_again(gate: Gate, act: Act, key: str) -> None:
    gate.workers.acts.append(act)
    assert isinstance(await followed(gate, "a", key, stream=True), WorkerFailed)
    await gate.quiet()
    (ended,) = gate.ends("failed")
    assert (ended.served, len(gate.workers.orders)) == (10 + 2 * 2, 1)
    if key:
        answer = await gate.ended("a", key, "failed")
        assert (answer.input_tokens, answer.output_tokens) == (10, 2)


@pytest.mark.parametrize(
    "act", [dies_after(2), Act(aborts_after=2), Act(ends_silently_after=2)], ids=["dies", "aborts", "ends"]
)
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_whole_answer_begins_again_after_tokens_and_costs_its_own_tokens(
    gate: Gate, act: Act, key: str
) -> None:
    gate.workers.acts.extend([replace(act, word="lost"), replace(act, word="too", input_tokens=11)])
    got = await followed(gate, "a", key)
    assert isinstance(got, Collected)
    (ended,) = gate.ends("done")
    assert (ended.attempt, ended.input_tokens, ended.output_tokens) == (3, 10, 3)
    assert (got.text, got.input_tokens, got.output_tokens) == ("xxx", ended.input_tokens, ended.output_tokens)
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2, 3]
    assert gate.spent("a") == 10 + 2 * 3
    if key:
        answer = await gate.ended("a", key, "done")
        assert (answer.attempt, answer.input_tokens, answer.output_tokens) == (3, 10, 3)
        assert json.loads(answer.body)["text"] == "xxx"


async def test_a_stream_of_which_its_caller_has_no_token_begins_again(gate: Gate) -> None:
    gate.workers.acts.append(Act(breaks_after=2, word="lost"))
    call = await dispatched(gate, "a", stream=True)
    assert isinstance(await anext(call.following.events()), Started)
    await asyncio.sleep(5.0)  # the first attempt is lost, and the second one comes to its end
    got = await read(call)
    assert (got.text, got.input_tokens, got.output_tokens) == ("xxx", 10, 3)
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2]
    assert gate.spent("a") == 10 + 2 * 3


async def test_an_answer_that_another_process_finished_is_whole(gate: Gate) -> None:
    """Two tokens of a lost attempt arrived here. The next attempt runs elsewhere, with another text."""
    gate.workers.acts.extend([Act(breaks_after=2), Act(word="y", input_tokens=11, reason="stop")])
    call = await dispatched(gate, "a", "k")
    reading = asyncio.ensure_future(read(call))
    await asyncio.sleep(0.25)
    there = gate.process()
    known = await submitted(gate, "a", "k", context=there)
    assert isinstance(known, Known)
    answer, got = await result_of(there, known), await reading
    known.leave()
    assert answer is not None
    assert (got.text, got.reason, got.input_tokens, got.output_tokens) == ("yyy", "stop", 11, 3)
    assert (answer.attempt, answer.input_tokens, answer.output_tokens) == (2, 11, 3)
    assert gate.spent("a") == 11 + 2 * 3


async def test_the_answer_that_an_earlier_attempt_stored_is_given(gate: Gate) -> None:
    """The first attempt's answer was stored, and its end never written. The second one has as many tokens."""
    gate.workers.acts.extend([Act(breaks_after=2), Act(word="y")])
    call = await dispatched(gate, "a", "k")
    body = json.dumps({"text": "first", "reason": "stop"})
    await gate.store.answer(call.call.id, Answer("done", 1, 10, 3, body, gate.clock.now()))
    got = await read(call)
    assert (got.text, got.reason, got.output_tokens) == ("first", "stop", 3)
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2]
    await gate.quiet()
    assert (await gate.ended("a", "k", "done")).body == body


@pytest.mark.parametrize("tokens", [0, 2])
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_whole_answer_has_three_attempts(gate: Gate, tokens: int, key: str) -> None:
    gate.workers.acts.extend([dies_after(tokens)] * 9)
    assert isinstance(await followed(gate, "a", key), WorkerFailed)
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2, 3]
    (ended,) = gate.ends("failed")
    assert (ended.attempt, ended.input_tokens, ended.output_tokens) == (3, 0, 0)
    if key:
        answer = await gate.ended("a", key, "failed")
        assert (answer.attempt, answer.output_tokens) == (3, 0)


async def test_a_durable_call_begins_again_though_its_front_died_as_well(gate: Gate) -> None:
    gate.workers.acts.append(Act(breaks_after=2, word="lost"))
    there = gate.process()
    call = await dispatched(gate, "a", "k", context=there)
    await asyncio.sleep(0.25)
    gate.link(there).cut_off = True
    gate.shard.decide(Gone(there.link.process))
    await asyncio.sleep(2.0)
    assert gate.launcher.launched == [(call.call.id, 2)]
    assert await execute_detached(gate.context, call.call.id)
    answer = await gate.ended("a", "k", "done")
    (ended,) = gate.ends("done")
    assert (answer.attempt, answer.input_tokens, answer.output_tokens) == (2, ended.input_tokens, ended.output_tokens)
    assert json.loads(answer.body)["text"] == "xxx"
    assert gate.spent("a") == 10 + 2 * 3
    call.leave()


async def test_three_lost_attempts_end_it_free(gate: Gate) -> None:
    gate.workers.acts.extend([UNREACHABLE] * 9)
    assert isinstance(await followed(gate, "a"), WorkerFailed)
    assert [order.attempt for _, order in gate.workers.orders] == [1, 2, 3]
    assert gate.spent("a") == 0.0


async def test_a_worker_that_stops_at_the_deadline_was_late_not_lost(gate: Gate) -> None:
    assert isinstance(await followed(gate, "a", deadline_s=0.25, max_tokens=99), DeadlineExceeded)
    (ended,) = gate.ends("expired")
    assert (ended.attempt, ended.served > 10) == (1, True)


async def test_a_worker_that_does_not_stop_at_the_deadline_is_left(gate: Gate) -> None:
    gate.workers.acts.append(Act(token_s=60.0))
    started = gate.clock.now()
    assert isinstance(await followed(gate, "a", deadline_s=5.0), DeadlineExceeded)
    assert gate.clock.now() - started == pytest.approx(5.0 + LATE_S)
    await gate.quiet()
    assert len(gate.workers.closed) == 1


async def test_a_refusal_below_500_is_the_tenants_with_its_code(gate: Gate) -> None:
    gate.workers.acts.append(refuses(422, "invalid_order", "No."))
    got = await followed(gate, "a")
    assert isinstance(got, TenantError)
    assert (got.status, got.code, got.message) == (422, "invalid_order", "No.")


async def test_what_is_shed_costs_nothing_and_is_tried_nowhere_else(gate: Gate) -> None:
    gate.add_worker("v")
    gate.workers.acts.append(SHED)
    got = await followed(gate, "a")
    assert isinstance(got, Refused)
    assert (got.status, got.code, got.type, got.retry_after_s) == (429, "overloaded", "rate_limit_error", 7.0)
    assert (gate.spent("a"), len(gate.workers.orders)) == (0.0, 1)


async def test_a_shed_storm_is_one_order_a_request(gate: Gate) -> None:
    gate.workers.acts.extend([SHED] * 12)
    got = await asyncio.gather(*(begun(gate, "a") for _ in range(12)))
    assert all(isinstance(one, Refused) for one in got)
    assert len(gate.workers.orders) == 12


@pytest.mark.parametrize("tokens", [0, 2])
async def test_what_is_dropped_is_charged_what_it_generated_once(gate: Gate, tokens: int) -> None:
    gate.workers.acts.append(Act(drops_after=tokens))
    got = await followed(gate, "a", "k")
    assert isinstance(got, Preempted)
    assert (got.status, got.code, got.retry_after_s) == (503, "preempted", 12.0)
    assert gate.spent("a") == (10 + 2 * tokens if tokens else 0)


async def test_what_the_client_says_of_its_request_goes_along_and_nothing_else(gate: Gate) -> None:
    await gate.add_tenant("first", Share(weight=7.0), tier=Tier.PREMIUM)
    request = replace(asked(), app="chat", stage=2, interaction="i-7")
    await followed(gate, "first", request=request)
    ((_, order),) = gate.workers.orders
    assert (order.app, order.stage, order.interaction, order.tier) == ("chat", 2, "i-7", Tier.PREMIUM)
    assert (order.tenant, order.weight, order.attempt, order.max_tokens) == ("first", 7.0, 1, 3)
    assert (order.invocation, order.durable, order.cache_salt) == ("p0-1", False, "")
    assert order.deadline_at == pytest.approx(gate.clock.now() + 300, abs=1)


async def test_not_tried_again_after_its_deadline(gate: Gate) -> None:
    gate.workers.acts.append(Act(start_s=4.5, breaks_after=0))
    assert isinstance(await followed(gate, "a", deadline_s=5.0), DeadlineExceeded)
    assert len(gate.workers.orders) == 1


async def test_a_slot_never_holds_more_than_one(gate: Gate) -> None:
    await asyncio.gather(*(begun(gate, name) for _ in range(20) for name in ("a", "b")))
    assert gate.workers.most_live["w"] == 2


# ── News while a stream runs ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("after_s", "delivered"), [(0.05, 0), (0.25, 2)])
async def test_a_stream_that_the_gate_fenced_is_closed_at_once(gate: Gate, after_s: float, delivered: int) -> None:
    gate.add_worker("v")
    call = await dispatched(gate, "a", max_tokens=5, stream=True)
    reading = asyncio.ensure_future(read(call))
    await asyncio.sleep(after_s)
    lost(gate, call.call.id, 1)
    await asyncio.sleep(0.01)
    assert gate.workers.closed == [f"{call.call.id}#1"]
    if delivered:
        with pytest.raises(WorkerFailed):
            await reading
        (ended,) = gate.ends("failed")
        assert (ended.attempt, ended.output_tokens, len(gate.workers.orders)) == (2, delivered, 1)
    else:
        assert (await reading).output_tokens == 5
        assert [order.attempt for _, order in gate.workers.orders] == [1, 2]


async def test_an_offer_that_is_not_above_the_highest_is_not_begun(gate: Gate) -> None:
    call = await dispatched(gate, "a")
    await asyncio.sleep(0.05)
    gate.link().put(Offer(call.call.id, 1, "w", "http://w", 0))
    gate.link().put(Offer(call.call.id, 0, "w", "http://w", 0))
    assert (await read(call)).text == "xxx"
    assert len(gate.workers.orders) == 1


async def test_a_caller_that_does_not_read_holds_up_no_offer(gate: Gate) -> None:
    """The stream is read ahead up to a bound, and news are reacted to all the same."""
    gate.add_worker("v")
    gate.workers.acts.append(Act(token_s=0.001))
    call = await dispatched(gate, "a", max_tokens=1000, stream=True)
    events = call.following.events()
    assert isinstance(await anext(events), Started)
    assert isinstance(await anext(events), Token)
    await asyncio.sleep(5.0)
    read_ahead = len(call.following._events)
    assert EVENTS_AHEAD_MAX - 1 <= read_ahead <= EVENTS_AHEAD_MAX
    lost(gate, call.call.id, 1)
    await asyncio.sleep(0.01)
    (ended,) = gate.ends("failed")
    assert ended.output_tokens <= EVENTS_AHEAD_MAX + 1
    with pytest.raises(WorkerFailed):
        await read(call)


@dataclass
class Buffered:
    """ports.WorkerClient with a network between: it holds the events that the front has not read yet."""

    workers: ScriptedWorkers

    async def execute(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        sent: asyncio.Queue[WorkEvent] = asyncio.Queue()

        async def send() -> None:
            async with aclosing(self.workers.execute(offer, order)) as events:
                async for event in events:
                    sent.put_nowait(event)

        sending = asyncio.ensure_future(send())
        try:
            while not isinstance(event := await sent.get(), Finished):
                yield event
            yield event
        finally:
            sending.cancel()


@pytest.mark.parametrize("pause_s", [1.0, 20.0])
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_slow_reader_gets_the_whole_answer_after_its_end_is_in_the_log(
    gate: Gate, key: str, pause_s: float
) -> None:
    gate.context.workers = Buffered(gate.workers)
    gate.workers.acts.append(Act(token_s=0.001))
    call = await dispatched(gate, "a", key, max_tokens=200, stream=True)
    got = Collected()
    async for event in call.following.events():
        got.note(event)
        if got.output_tokens % 20 == 0:
            await asyncio.sleep(pause_s)
    call.leave()
    assert got.text == "x" * 200


@pytest.mark.parametrize("key", ["", "k"])
async def test_the_end_is_in_the_log_and_the_connection_breaks(gate: Gate, key: str) -> None:
    """The record says done. A kept answer is delivered; without one the text that arrived is known to be whole."""
    gate.workers.acts.append(Act(cut_at_end=True, reason="stop"))
    got = await followed(gate, "a", key)
    assert isinstance(got, Collected)
    assert (got.text, got.input_tokens, got.output_tokens) == ("xxx", 10, 3)
    assert (gate.spent("a"), len(gate.workers.orders)) == (16.0, 1)


async def test_an_end_without_all_of_its_text_is_an_error(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke before the last token, and the worker ended the call as done."""

    async def cut(_offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        yield Started(10)
        yield Token("x", 1)
        gate.shard.decide(End(order.invocation, order.attempt, "done", 10, 3, order.tenant))
        gate.workers.seen.add(order.execution)
        raise WorkerFailed()

    monkeypatch.setattr(gate.workers, "execute", cut)
    got = await followed(gate, "a")
    assert isinstance(got, WorkerFailed)
    assert "end of the answer" in got.message


async def test_an_error_of_the_client_is_a_lost_stream(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(_offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        gate.workers.seen.add(order.execution)
        gate.workers.lost(_offer)
        raise RuntimeError("a mistake")
        yield Started(1)

    monkeypatch.setattr(gate.workers, "execute", breaks)
    assert isinstance(await followed(gate, "a"), WorkerFailed)


async def test_a_process_that_was_given_up_answers_its_callers(gate: Gate) -> None:
    busy = [begun(gate, "b", context=gate.process(), max_tokens=20) for _ in range(2)]
    await asyncio.sleep(0.01)
    waiting = begun(gate, "a")
    await asyncio.sleep(0.01)
    gate.shard.decide(Gone("p0"))
    got = await waiting
    assert isinstance(got, WorkerFailed)
    assert "no message from this server" in got.message
    await asyncio.gather(*busy)


async def test_the_deadline_passes_in_the_queue_whoever_notices_it_first(gate: Gate) -> None:
    busy = [begun(gate, "b", max_tokens=99) for _ in range(2)]
    await asyncio.sleep(0.01)
    got = await asyncio.gather(begun(gate, "a", deadline_s=2.0), begun(gate, "a", "k", deadline_s=2.0))
    assert [type(one) for one in got] == [DeadlineExceeded] * 2
    await gate.ended("a", "k", "expired")
    assert len(gate.workers.orders) == 2
    await asyncio.gather(*busy)


# ── Callers that leave ─────────────────────────────────────────────────────────────────────────────────────────────


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
    busy = [begun(gate, "b", max_tokens=1) for _ in range(2)]
    await asyncio.sleep(0.001)
    waiting = await queued(gate, "a")
    gate.shard.delay_s = 0.05
    await asyncio.sleep(0.12)
    waiting.leave()  # its Cancel arrives after its dispatch
    await asyncio.sleep(0.3)
    assert [c.reason for c in gate.shard.commands if isinstance(c, Return)] == ["declined"]
    assert [c.outcome for c in gate.shard.commands if isinstance(c, Cancel)] == ["cancelled"]
    assert gate.shard.shard.state.calls == {}
    await asyncio.gather(*busy)


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
    busy = [begun(gate, "b", max_tokens=5) for _ in range(2)]
    await asyncio.sleep(0.001)
    waiting = [await queued(gate, "a"), await queued(gate, "a", "k")]
    gate.shard.down = True
    for call in waiting:
        call.leave()
    await asyncio.sleep(0.1)
    assert [name for name in gate.link().waiting if name in {call.call.id for call in waiting}] == []
    gate.shard.down = False
    for call in waiting:
        gate.shard.decide_cancel(call.call.id)
    await asyncio.gather(*busy)


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
    gate.shard.decide(accept_of(call.call, gate.link(), "p0"))  # the first one holds it again
    with pytest.raises(WorkerFailed):
        await reading
    await asyncio.sleep(0.01)
    assert await execute_detached(gate.process(), gate.launcher.launched[-1][0])
    answer = await result_of(there, known)
    known.leave()
    assert answer is not None
    assert (answer.outcome, answer.output_tokens) == ("done", 3)


# ── Commands without an answer ─────────────────────────────────────────────────────────────────────────────────────


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
