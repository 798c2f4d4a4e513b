"""The attempts of a call: which errors are tried again, what is charged, and what the caller gets."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from dispatcher.model.answers import Collected
from dispatcher.model.commands import Gone, Silent
from dispatcher.model.errors import DeadlineExceeded, Preempted, Refused, WorkerFailed
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.worker_protocol import Started
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.calls.following import LATE_S
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from tests.support.world.memory_gate import POOL, Gate
from tests.support.world.story import answered_again, asked, dispatched, events_of, followed, read
from tests.support.world.worker_client import SHED, Act, dies_after


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
        assert json.loads(answer.body)["choices"][0]["text"] == "xxx"


async def test_a_stream_of_which_its_caller_has_no_token_begins_again(gate: Gate) -> None:
    gate.workers.acts.append(Act(breaks_after=2, word="lost"))
    call = await dispatched(gate, "a", stream=True)
    assert isinstance(await anext(events_of(call.following)), Started)
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
    answer, got = await answered_again(gate, "a", "k", context=gate.process()), await reading
    assert (got.text, got.reason, got.input_tokens, got.output_tokens) == ("yyy", "stop", 11, 3)
    assert (answer.attempt, answer.input_tokens, answer.output_tokens) == (2, 11, 3)
    assert gate.spent("a") == 11 + 2 * 3


async def test_the_answer_that_an_earlier_attempt_stored_is_given(gate: Gate) -> None:
    """The first attempt's answer was stored, and its end never written. The second one has as many tokens."""
    gate.workers.acts.extend([Act(breaks_after=2), Act(word="y")])
    call = await dispatched(gate, "a", "k")
    body = json.dumps({"text": "first", "reason": "stop"})
    await gate.store.answer(call.call.id, StoredAnswer("done", 1, 10, 3, body, gate.clock.now()))
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
    gate.shard.decide(Silent(there.link(POOL).process, False))
    gate.shard.decide(Gone(there.link(POOL).process, False))
    await asyncio.sleep(2.0)
    assert gate.launcher.launched == [(call.call.id, 2)]
    assert await execute_detached(gate.context, call.call.id)
    answer = await gate.ended("a", "k", "done")
    (ended,) = gate.ends("done")
    assert (answer.attempt, answer.input_tokens, answer.output_tokens) == (2, ended.input_tokens, ended.output_tokens)
    assert json.loads(answer.body)["choices"][0]["text"] == "xxx"
    assert gate.spent("a") == 10 + 2 * 3
    call.leave()


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


async def test_what_is_shed_costs_nothing_and_is_tried_nowhere_else(gate: Gate) -> None:
    gate.add_worker("v")
    gate.workers.acts.append(SHED)
    got = await followed(gate, "a")
    assert isinstance(got, Refused)
    assert (got.status, got.code, got.type, got.retry_after_s) == (429, "overloaded", "rate_limit_error", 7.0)
    assert (gate.spent("a"), len(gate.workers.orders)) == (0.0, 1)


@pytest.mark.parametrize("tokens", [0, 2])
async def test_what_is_dropped_is_charged_what_it_generated_once(gate: Gate, tokens: int) -> None:
    gate.workers.acts.append(Act(drops_after=tokens))
    got = await followed(gate, "a", "k")
    assert isinstance(got, Preempted)
    assert (got.status, got.code, got.retry_after_s) == (503, "preempted", 12.0)
    assert gate.spent("a") == (10 + 2 * tokens if tokens else 0)


async def test_what_the_client_says_of_its_request_goes_along_and_nothing_else(gate: Gate) -> None:
    await gate.add_tenant("first", Share(weight=7.0), tier=Tier.PREMIUM, prefix_group="partners")
    request = replace(asked(), app="chat", stage=2, interaction="i-7")
    await followed(gate, "first", request=request)
    ((_, order),) = gate.workers.orders
    assert (order.terms.app, order.stage, order.terms.interaction, order.tier) == ("chat", 2, "i-7", Tier.PREMIUM)
    assert (order.terms.tenant, order.weight, order.attempt, order.max_tokens) == ("first", 7.0, 1, 3)
    assert (order.invocation, order.terms.durable, order.cache_salt) == ("p0-1", False, "")
    assert order.prefix_group == "partners"
    assert order.terms.deadline_at == pytest.approx(gate.clock.now() + 300, abs=1)


async def test_not_tried_again_after_its_deadline(gate: Gate) -> None:
    gate.workers.acts.append(Act(start_s=4.5, breaks_after=0))
    assert isinstance(await followed(gate, "a", deadline_s=5.0), DeadlineExceeded)
    assert len(gate.workers.orders) == 1
