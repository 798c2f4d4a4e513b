"""How executions end, what the worker reports of them, and when the slot is free."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dispatcher.model.commands import Over, Return
from dispatcher.model.kept import StoredAnswer, priced_details_of
from dispatcher.operations.calls.results import last_event
from dispatcher.workers.wire import parse_event
from gpu_worker.engines.interface import EngineError, Evicted, Finished, Token
from gpu_worker.service.executions.execution import Abort
from gpu_worker.service.executions.executions import ALIVE
from tests.support.worker.harness import WorkerHarness, order, read
from tests.support.worker.scripted_engine import ChangedEngine, FailingEngine, ScriptedEngine, TokenizingEngine
from tests.support.world.virtual_time import START

pytestmark = pytest.mark.virtual_time


class TestTheLastEvent:
    async def test_it_comes_when_the_log_has_the_end_and_the_slot_is_free(self) -> None:
        harness = WorkerHarness()
        harness.gate.answers_s = 1.0
        lines = harness.lines(order())
        seen = [await anext(lines) for _ in range(4)]  # started and three tokens
        last = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.5)
        assert harness.executions.running() == frozenset()
        assert harness.executions.live() == {"i#1"}, "its report is under way"
        assert not last.done()
        seen.append(await last)
        assert [end.outcome for end in harness.gate.ended] == ["done"]
        assert [parse_event(line).event for line in seen] == ["started", *["token"] * 3, "finished"]
        assert [line async for line in lines] == []

    async def test_the_gate_away_for_minutes_signs_of_life_go_on_and_nothing_is_lost(self) -> None:
        harness = WorkerHarness()
        harness.gate.away = True
        reading = harness.start(order(deadline_at=START + 600))
        await asyncio.sleep(300)
        assert not reading.done()
        harness.gate.away = False
        lines = await reading
        assert lines.count(ALIVE) > 100
        assert json.loads(lines[-1])["event"] == "finished"
        assert [end.outcome for end in harness.gate.ended] == ["done"]
        assert len(harness.outbox) == 0

    async def test_a_lost_reply_adds_no_second_end(self) -> None:
        harness = WorkerHarness()
        harness.gate.loses_reply = True
        reading = harness.start(order())
        await asyncio.sleep(5)
        harness.gate.loses_reply = False
        assert json.loads((await reading)[-1])["event"] == "finished"
        assert len(harness.gate.ended) == 1
        assert harness.gate.tries > 2

    async def test_at_the_deadline_the_stream_closes_without_it_and_the_report_goes_on(self) -> None:
        harness = WorkerHarness()
        harness.gate.away = True
        lines = await harness.start(order(deadline_at=START + 20))
        assert harness.clock.now() == START + 20
        harness.gate.away = False
        await harness.executions.idle()
        assert lines[-1] == ALIVE
        assert [end.outcome for end in harness.gate.ended] == ["done"]

    @pytest.mark.parametrize("outcome", [None, Over("i", 1, "cancelled"), Over("i", 2, "done")])
    async def test_an_attempt_that_is_fenced_or_over_in_the_log_closes_without_it(self, outcome: Over | None) -> None:
        harness = WorkerHarness()
        reading = harness.start(order())
        await asyncio.sleep(0.05)
        harness.gate.held.clear()
        if outcome is not None:
            harness.gate.over["i#1"] = outcome
        assert json.loads((await reading)[-1])["event"] == "token"

    async def test_a_caller_that_leaves_while_it_waits_changes_nothing(self) -> None:
        harness = WorkerHarness()
        harness.gate.away = True
        lines = harness.lines(order())
        for _ in range(5):
            await anext(lines)
        await lines.aclose()
        harness.gate.away = False
        await harness.executions.idle()
        assert [end.outcome for end in harness.gate.ended] == ["done"]


async def test_the_time_to_the_first_token_is_reported() -> None:
    harness = WorkerHarness(TokenizingEngine())
    await harness.start(order())
    assert harness.gate.ended[0].first_token_s == pytest.approx(1.1)


async def test_a_call_that_is_not_durable_has_no_answer() -> None:
    harness = WorkerHarness()
    await harness.start(order())
    assert harness.gate.ended[0].answer == ""


async def test_an_answer_that_is_too_long_is_not_kept_and_the_caller_learns_it() -> None:
    harness = WorkerHarness(ChangedEngine(Token, text="é" * 100_000))
    lines = await harness.start(order(durable=True))
    (end,) = harness.gate.ended
    assert (end.outcome, end.output_tokens) == ("failed", 3)
    assert json.loads(end.answer)["error"]["code"] == "result_too_large"
    assert json.loads(lines[-1])["code"] == "result_too_large"


async def test_an_answer_keeps_the_cached_and_the_reasoning_tokens() -> None:
    harness = WorkerHarness(ChangedEngine(Finished, cached_tokens=2, reasoning_tokens=1))
    await harness.start(order(durable=True))
    end = harness.gate.ended[0]
    answer = StoredAnswer("done", 1, end.input_tokens, end.output_tokens, end.answer, 0.0)
    assert end.cached_tokens == priced_details_of(answer)["cached_tokens"] == 2
    spent = last_event(answer)
    assert (spent.cached_tokens, spent.reasoning_tokens) == (2, 1)
    failed = StoredAnswer("failed", 1, 3, 0, '{"error": {}}', 0.0)
    assert priced_details_of(failed) == {"cached_tokens": 0, "adapter_loaded": False}


async def test_half_of_a_character_does_not_break_an_answer() -> None:
    harness = WorkerHarness(ChangedEngine(Token, text="\ud83d"))
    await left(harness, 1, durable=True, max_tokens=1)
    assert json.loads(harness.gate.ended[0].answer)["choices"][0]["text"] == "?"


async def left(harness: WorkerHarness, lines_read: int, **fields: Any) -> None:
    """Read so many lines of an order, close the stream, and wait until the execution has ended."""
    lines = harness.lines(order(**{"max_tokens": 500, **fields}))
    for _ in range(lines_read):
        await anext(lines)
    await lines.aclose()
    await harness.executions.idle()


@pytest.mark.parametrize("lines_read", [1, 2, 5])
async def test_when_its_caller_leaves_a_call_ends_once_with_the_exact_counts(lines_read: int) -> None:
    harness = WorkerHarness()
    await left(harness, lines_read)
    (end,) = harness.gate.ended
    assert (end.id, end.attempt, end.outcome, end.tenant) == ("i", 1, "cancelled", "a")
    assert (end.input_tokens, end.output_tokens) == (5, harness.engine.generated)
    assert lines_read - 1 <= harness.engine.generated <= lines_read + 1
    assert harness.executions.live() == frozenset()


async def test_a_caller_that_leaves_during_tokenization_costs_next_to_nothing() -> None:
    harness = WorkerHarness(TokenizingEngine())
    reading = harness.start(order(max_tokens=500))
    await asyncio.sleep(0.5)
    reading.cancel()
    await asyncio.wait({reading})
    await harness.executions.idle()
    assert harness.engine.generated <= 1
    (end,) = harness.gate.ended
    assert (end.outcome, end.input_tokens, end.output_tokens) == ("cancelled", 5, harness.engine.generated)


async def test_an_engine_that_fails_while_the_caller_leaves_frees_the_slot() -> None:
    harness = WorkerHarness(FailingEngine(EngineError("engine_failed", "it failed"), 2))
    await left(harness, 3)
    assert harness.executions.live() == frozenset()
    assert [end.outcome for end in harness.gate.ended] == ["cancelled"]


async def test_a_durable_call_goes_on_without_its_caller_and_its_answer_is_kept() -> None:
    harness = WorkerHarness()
    await left(harness, 1, max_tokens=5, durable=True)
    (end,) = harness.gate.ended
    assert (end.outcome, end.output_tokens) == ("done", 5)
    assert json.loads(end.answer) == {"choices": [{"text": "xxxxx", "reason": "length"}]}


async def test_a_durable_call_without_its_caller_ends_at_its_deadline_too() -> None:
    harness = WorkerHarness()
    await left(harness, 1, durable=True, deadline_at=START + 3)
    (end,) = harness.gate.ended
    assert end.outcome == "expired"
    assert json.loads(end.answer)["error"]["code"] == "deadline_exceeded"
    assert json.loads(end.answer)["status"] == 504


async def test_an_attempt_that_the_log_does_not_hold_is_not_reported_if_its_caller_leaves_later() -> None:
    harness = WorkerHarness()
    lines = harness.lines(order(max_tokens=500))
    await anext(lines)
    await harness.executions.abort("i#1", Abort.LEASE_LOST)
    await lines.aclose()
    await harness.executions.idle()
    assert harness.gate.tries == 0


@pytest.mark.parametrize(("why", "reason"), [(Abort.DRAINED, "refused"), (Abort.CUT_OFF, "lost")])
async def test_an_aborted_attempt_without_a_token_goes_back(why: Abort, reason: str) -> None:
    """Also if the abort comes before the engine knows the request."""
    harness = WorkerHarness(TokenizingEngine())
    reading = harness.start(order(max_tokens=500))
    await asyncio.sleep(0.5)
    await harness.executions.abort("i#1", why)
    lines = await reading
    assert harness.gate.returned == [Return("i", 1, reason, "w")]
    assert not harness.gate.ended
    assert not json.loads(lines[-1])["final"]
    assert harness.engine.generated == 0


@pytest.mark.parametrize("why", [Abort.DRAINED, Abort.CUT_OFF])
async def test_an_aborted_call_with_tokens_ends_and_is_charged_for_them(why: Abort) -> None:
    harness = WorkerHarness()
    reading = harness.start(order(max_tokens=500))
    await asyncio.sleep(1)
    await harness.executions.abort("i#1", why)
    lines = await reading
    (end,) = harness.gate.ended
    assert (end.outcome, end.output_tokens) == ("failed", harness.engine.generated)
    assert json.loads(lines[-1])["final"]


@pytest.mark.parametrize("token_s", [0.001, 0.1, 0.7, 30.0])
async def test_a_call_past_its_deadline_is_aborted_at_the_next_step(token_s: float) -> None:
    harness = WorkerHarness(ScriptedEngine(token_s=token_s))
    lines = await harness.start(order(max_tokens=10_000, deadline_at=START + 2))
    last, took_s = json.loads(lines[-1]), harness.clock.now() - START
    assert (last["event"], last["status"], last["code"]) == ("refused", 504, "deadline_exceeded")
    assert last["final"]
    assert 2 <= took_s <= max(2.0, token_s) + 2 * token_s
    (end,) = harness.gate.ended
    assert (end.outcome, end.output_tokens) == ("expired", harness.engine.generated)


async def test_a_deadline_that_passes_while_the_reader_dawdles_is_kept_too() -> None:
    """Tokens are ready whenever it looks: it must not take that for the engine being in time."""
    harness = WorkerHarness(ScriptedEngine(token_s=0.5))
    lines = harness.lines(order(max_tokens=200, deadline_at=START + 1))
    await anext(lines)
    await anext(lines)
    await asyncio.sleep(1)
    await read(lines)
    assert harness.gate.ended[0].outcome == "expired"


@pytest.mark.parametrize("error", [EngineError("engine_restarted", "it was"), RuntimeError("canary")])
async def test_if_the_engine_fails_before_the_first_token_the_attempt_is_returned(error: Exception) -> None:
    """Another worker may serve the call. After the token the caller has a part of an answer."""
    harness = WorkerHarness(FailingEngine(error, 0))
    lines = await harness.start(order())
    assert harness.gate.returned == [Return("i", 1, "failed", "w")]
    assert not harness.gate.ended
    assert [json.loads(line)["event"] for line in lines] == ["started", "refused"]
    last = json.loads(lines[-1])
    assert (last["status"], last["final"]) == (500, False)
    assert b"canary" not in lines[-1]


@pytest.mark.parametrize("error", [EngineError("engine_restarted", "it was"), RuntimeError("canary")])
async def test_if_the_engine_fails_after_it_the_call_ends_with_the_tokens_that_were_sent(error: Exception) -> None:
    harness = WorkerHarness(FailingEngine(error, 2))
    lines = await harness.start(order())
    assert not harness.gate.returned
    (end,) = harness.gate.ended
    assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 5, 2)
    assert json.loads(lines[-1])["final"]
    assert harness.executions.live() == frozenset()


@pytest.mark.parametrize(("status", "answered"), [(None, 400), (400, 400), (413, 413), (422, 422), (500, 400)])
async def test_a_fault_of_the_request_has_the_servers_status(status: int | None, answered: int) -> None:
    harness = WorkerHarness(FailingEngine(EngineError("invalid_request", "no", status=status), 0))
    lines = await harness.start(order())
    assert [end.outcome for end in harness.gate.ended] == ["failed"]
    last = json.loads(lines[-1])
    assert (last["status"], last["code"], last["final"]) == (answered, "invalid_request", True)


@pytest.mark.parametrize("fields", [{"durable": True}, {"streamed": False}, {"durable": True, "streamed": False}])
async def test_a_call_that_is_answered_as_a_whole_is_returned_also_after_tokens(fields: dict[str, bool]) -> None:
    harness = WorkerHarness(FailingEngine(EngineError("engine_restarted", "it was"), 2))
    await harness.start(order(**fields))  # type: ignore[arg-type]
    assert harness.gate.returned == [Return("i", 1, "failed", "w")]


async def test_a_durable_call_that_is_evicted_ends_with_an_answer() -> None:
    harness = WorkerHarness(FailingEngine(Evicted(), 2))
    await harness.start(order(durable=True))
    (end,) = harness.gate.ended
    answer = json.loads(end.answer)
    assert (end.outcome, answer["status"], answer["error"]["code"]) == ("failed", 503, "preempted")
    assert answer["retry_after_s"] > 0


async def test_a_request_that_is_refused_before_a_token_is_not_charged() -> None:
    harness = WorkerHarness(FailingEngine(Evicted(), 0))
    await harness.start(order())
    (end,) = harness.gate.ended
    assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 0, 0)
