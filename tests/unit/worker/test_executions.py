"""Executions: how they end, that each is reported once, and in which order slot, report and last event come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import Done, End, Over, Return
from dispatcher.worker_wire import parse_event
from gpu_worker.engines.interface import Dropped, EngineError, EngineRequest
from gpu_worker.service.execution import Abort
from gpu_worker.service.executions import ALIVE, RETURN_S, Refusal
from gpu_worker.service.outbox import PENDING_MAX
from headgate.simulator.virtual_time import START, run
from tests.support.worker.harness import SLOTS, WorkerHarness, order, read
from tests.support.worker.scripted_engine import ScriptedEngine


async def left(harness: WorkerHarness, lines_read: int, **fields: Any) -> None:
    """A caller that closes the stream after so many lines."""
    lines = harness.lines(order(max_tokens=500, **fields))
    for _ in range(lines_read):
        await anext(lines)
    await lines.aclose()
    await harness.executions.idle()


class Failing(ScriptedEngine):
    """Ends every request with an error after so many tokens."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__()
        self.error = error
        self.after = after

    async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
        async for event in super().generate(request):
            yield event
            if self.generated >= self.after:
                raise self.error


class Tokenizing(ScriptedEngine):
    """Knows a request only after a second."""

    async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
        await asyncio.sleep(1)
        async for event in super().generate(request):
            yield event


class TestTheCallerLeaves:
    @pytest.mark.parametrize("lines_read", [1, 2, 5])
    def test_the_end_is_cancelled_with_the_exact_counts_and_once(self, lines_read: int) -> None:
        harness = WorkerHarness()
        run(left(harness, lines_read))
        (end,) = harness.gate.ended
        assert (end.id, end.attempt, end.outcome, end.tenant) == ("i", 1, "cancelled", "a")
        assert (end.input_tokens, end.output_tokens) == (5, harness.engine.generated)
        assert lines_read - 1 <= harness.engine.generated <= lines_read + 1
        assert harness.executions.live() == frozenset()

    def test_while_its_prompt_is_tokenized_it_generates_next_to_nothing(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness(Tokenizing())
            reading = harness.start(order(max_tokens=500))
            await asyncio.sleep(0.5)
            reading.cancel()
            await asyncio.wait({reading})
            await harness.executions.idle()
            return harness

        harness = run(story())
        assert harness.engine.generated <= 1
        (end,) = harness.gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("cancelled", 5, harness.engine.generated)

    def test_an_engine_that_fails_meanwhile_frees_the_slot(self) -> None:
        harness = WorkerHarness(Failing(EngineError("engine_failed", "it failed"), 2))
        run(left(harness, 3))
        assert harness.executions.live() == frozenset()
        assert [end.outcome for end in harness.gate.ended] == ["cancelled"]

    def test_a_durable_call_goes_on_and_its_answer_is_kept(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness()
            lines = harness.lines(order(max_tokens=5, durable=True))
            await anext(lines)
            await lines.aclose()
            await harness.executions.idle()
            return harness

        (end,) = run(story()).gate.ended
        assert (end.outcome, end.output_tokens) == ("done", 5)
        assert json.loads(end.answer) == {"text": "xxxxx", "reason": "length"}

    def test_a_durable_call_ends_at_its_deadline_too(self) -> None:
        harness = WorkerHarness()
        run(left(harness, 1, durable=True, deadline_at=START + 3))
        (end,) = harness.gate.ended
        assert end.outcome == "expired"
        assert json.loads(end.answer)["error"]["code"] == "deadline_exceeded"
        assert json.loads(end.answer)["status"] == 504


class TestTheLastEvent:
    def test_it_comes_when_the_log_has_the_end_and_the_slot_is_free(self) -> None:
        async def story() -> None:
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

        run(story())

    def test_the_gate_away_for_minutes_signs_of_life_go_on_and_nothing_is_lost(self) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness()
            harness.gate.away = True
            reading = harness.start(order(deadline_at=START + 600))
            await asyncio.sleep(300)
            assert not reading.done()
            harness.gate.away = False
            return harness, await reading

        harness, lines = run(story())
        assert lines.count(ALIVE) > 100
        assert json.loads(lines[-1])["event"] == "finished"
        assert [end.outcome for end in harness.gate.ended] == ["done"]
        assert len(harness.outbox) == 0

    def test_a_lost_reply_adds_no_second_end(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness()
            harness.gate.loses_reply = True
            reading = harness.start(order())
            await asyncio.sleep(5)
            harness.gate.loses_reply = False
            assert json.loads((await reading)[-1])["event"] == "finished"
            return harness

        harness = run(story())
        assert len(harness.gate.ended) == 1
        assert harness.gate.tries > 2

    def test_at_the_deadline_the_stream_closes_without_it_and_the_report_goes_on(self) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness()
            harness.gate.away = True
            lines = await harness.start(order(deadline_at=START + 20))
            assert harness.clock.now() == START + 20
            harness.gate.away = False
            await harness.executions.idle()
            return harness, lines

        harness, lines = run(story())
        assert lines[-1] == ALIVE
        assert [end.outcome for end in harness.gate.ended] == ["done"]

    def test_a_fenced_attempt_closes_without_it(self) -> None:
        async def story() -> list[bytes]:
            harness = WorkerHarness()
            reading = harness.start(order())
            await asyncio.sleep(0.05)
            harness.gate.held.clear()
            return await reading

        assert json.loads(run(story())[-1])["event"] == "token"

    @pytest.mark.parametrize("outcome", [Over("i", 1, "cancelled"), Over("i", 2, "done")])
    def test_an_end_that_the_log_knows_otherwise_closes_without_it_too(self, outcome: Over) -> None:
        async def story() -> list[bytes]:
            harness = WorkerHarness()
            reading = harness.start(order())
            await asyncio.sleep(0.05)
            harness.gate.held.clear()
            harness.gate.over["i#1"] = outcome
            return await reading

        assert json.loads(run(story())[-1])["event"] == "token"

    def test_a_caller_that_leaves_while_it_waits_changes_nothing(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness()
            harness.gate.away = True
            lines = harness.lines(order())
            for _ in range(5):
                await anext(lines)
            await lines.aclose()
            harness.gate.away = False
            await harness.executions.idle()
            return harness

        assert [end.outcome for end in run(story()).gate.ended] == ["done"]


class TestTheEngineFails:
    """Before the first token another worker may serve the call; after it the caller has a part of an answer."""

    @pytest.mark.parametrize("error", [EngineError("engine_restarted", "it was"), RuntimeError("canary")])
    def test_before_the_first_token_the_attempt_is_returned(self, error: Exception) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness(Failing(error, 0))
            return harness, await harness.start(order())

        harness, lines = run(story())
        assert harness.gate.returned == [Return("i", 1, "failed", "w")]
        assert not harness.gate.ended
        last = json.loads(lines[-1])
        assert (last["event"], last["status"], last["final"]) == ("refused", 500, False)
        assert b"canary" not in lines[-1]

    @pytest.mark.parametrize("error", [EngineError("engine_restarted", "it was"), RuntimeError("canary")])
    def test_after_it_the_call_ends_with_the_tokens_that_were_sent(self, error: Exception) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness(Failing(error, 2))
            return harness, await harness.start(order())

        harness, lines = run(story())
        assert not harness.gate.returned
        (end,) = harness.gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 5, 2)
        assert json.loads(lines[-1])["final"]
        assert harness.executions.live() == frozenset()

    @pytest.mark.parametrize("fields", [{"durable": True}, {"streamed": False}, {"durable": True, "streamed": False}])
    def test_a_call_that_is_answered_as_a_whole_is_returned_also_after_tokens(self, fields: dict[str, bool]) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness(Failing(EngineError("engine_restarted", "it was"), 2))
            await harness.start(order(**fields))  # type: ignore[arg-type]
            return harness

        assert run(story()).gate.returned == [Return("i", 1, "failed", "w")]

    def test_a_durable_call_that_is_evicted_ends_with_an_answer(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness(Failing(Dropped(), 2))
            await harness.start(order(durable=True))
            return harness

        (end,) = run(story()).gate.ended
        answer = json.loads(end.answer)
        assert (end.outcome, answer["status"], answer["error"]["code"]) == ("failed", 503, "preempted")
        assert answer["retry_after_s"] > 0

    def test_a_request_that_is_refused_before_a_token_is_not_charged(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness(Failing(Dropped(), 0))
            await harness.start(order())
            return harness

        (end,) = run(story()).gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 0, 0)


class TestAnswers:
    def test_the_time_to_the_first_token_is_reported(self) -> None:
        async def story() -> End:
            harness = WorkerHarness(Tokenizing())
            await harness.start(order())
            return harness.gate.ended[0]

        assert run(story()).first_token_s == pytest.approx(1.1)

    def test_a_call_that_is_not_durable_has_no_answer(self) -> None:
        async def story() -> End:
            harness = WorkerHarness()
            await harness.start(order())
            return harness.gate.ended[0]

        assert run(story()).answer == ""

    def test_an_answer_that_is_too_long_is_not_kept_and_the_caller_learns_it(self) -> None:
        class Wordy(ScriptedEngine):
            async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
                async for event in super().generate(request):
                    if event.event == "token":
                        event = type(event)("é" * 100_000, event.output_tokens)
                    yield event

        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness(Wordy())
            return harness, await harness.start(order(durable=True))

        harness, lines = run(story())
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("failed", 3)
        assert json.loads(end.answer)["error"]["code"] == "result_too_large"
        assert json.loads(lines[-1])["code"] == "result_too_large"

    def test_half_of_a_character_does_not_break_it(self) -> None:
        class Halves(ScriptedEngine):
            async def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
                async for event in super().generate(request):
                    if event.event == "token":
                        event = type(event)("\ud83d", event.output_tokens)
                    yield event

        async def story() -> End:
            harness = WorkerHarness(Halves())
            lines = harness.lines(order(durable=True, max_tokens=1))
            await anext(lines)
            await lines.aclose()
            await harness.executions.idle()
            return harness.gate.ended[0]

        assert json.loads(run(story()).answer)["text"] == "?"


class TestAborts:
    def test_an_attempt_that_the_log_does_not_hold_is_not_reported(self) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness()
            reading = harness.start(order(max_tokens=500))
            await asyncio.sleep(1)
            await harness.executions.abort("i#1", Abort.LEASE_LOST)
            return harness, await reading

        harness, lines = run(story())
        assert harness.gate.tries == 0
        assert json.loads(lines[-1])["event"] == "token"
        assert harness.executions.live() == frozenset()

    def test_also_if_its_caller_leaves_later(self) -> None:
        async def story() -> WorkerHarness:
            harness = WorkerHarness()
            lines = harness.lines(order(max_tokens=500))
            await anext(lines)
            await harness.executions.abort("i#1", Abort.LEASE_LOST)
            await lines.aclose()
            await harness.executions.idle()
            return harness

        assert run(story()).gate.tries == 0

    @pytest.mark.parametrize(("why", "reason"), [(Abort.DRAINED, "refused"), (Abort.CUT_OFF, "lost")])
    def test_without_a_token_the_attempt_goes_back(self, why: Abort, reason: str) -> None:
        """Also if the abort comes before the engine knows the request."""

        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness(Tokenizing())
            reading = harness.start(order(max_tokens=500))
            await asyncio.sleep(0.5)
            await harness.executions.abort("i#1", why)
            return harness, await reading

        harness, lines = run(story())
        assert harness.gate.returned == [Return("i", 1, reason, "w")]
        assert not harness.gate.ended
        assert not json.loads(lines[-1])["final"]
        assert harness.engine.generated == 0

    @pytest.mark.parametrize("why", [Abort.DRAINED, Abort.CUT_OFF])
    def test_after_tokens_the_call_ends_and_is_charged_for_them(self, why: Abort) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness()
            reading = harness.start(order(max_tokens=500))
            await asyncio.sleep(1)
            await harness.executions.abort("i#1", why)
            return harness, await reading

        harness, lines = run(story())
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("failed", harness.engine.generated)
        assert json.loads(lines[-1])["final"]

    @pytest.mark.parametrize("token_s", [0.001, 0.1, 0.7, 30.0])
    def test_past_its_deadline_it_is_aborted_at_the_next_step(self, token_s: float) -> None:
        async def story() -> tuple[WorkerHarness, dict[str, Any], float]:
            harness = WorkerHarness(ScriptedEngine(token_s=token_s))
            lines = await harness.start(order(max_tokens=10_000, deadline_at=START + 2))
            return harness, json.loads(lines[-1]), harness.clock.now() - START

        harness, last, took_s = run(story())
        assert (last["event"], last["status"], last["code"]) == ("refused", 504, "deadline_exceeded")
        assert last["final"]
        assert 2 <= took_s <= max(2.0, token_s) + 2 * token_s
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("expired", harness.engine.generated)

    def test_a_deadline_that_passes_while_the_reader_dawdles_is_kept_too(self) -> None:
        """Tokens are ready whenever it looks: it must not take that for the engine being in time."""

        async def story() -> str:
            harness = WorkerHarness(ScriptedEngine(token_s=0.5))
            lines = harness.lines(order(max_tokens=200, deadline_at=START + 1))
            await anext(lines)
            await anext(lines)
            await asyncio.sleep(1)
            await read(lines)
            return harness.gate.ended[0].outcome

        assert run(story()) == "expired"


class TestAdmission:
    def test_an_order_is_valid_once(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            await harness.start(order())
            with pytest.raises(Refusal) as refused:
                harness.lines(order())
            assert (refused.value.status, refused.value.code) == (409, "seen_already")
            await harness.start(order(attempt=2))
            with pytest.raises(Refusal):
                harness.lines(order(attempt=1))
            assert len(harness.engine.requests) == 2

        run(story())

    def test_an_order_signed_for_an_earlier_process_of_the_worker_is_refused(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            token = harness.token(order())
            await asyncio.sleep(10)
            harness.executions._seen.started_at = harness.clock.now()
            with pytest.raises(Refusal, match="before this worker was started"):
                harness.executions.run(token, order())
            await harness.start(order())

        run(story())

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"accepting": False}, "draining"),
            ({"engine_serves": lambda: False}, "draining"),
            ({"slots": 0}, "worker_full"),
        ],
    )
    def test_an_attempt_that_cannot_begin_is_returned_before_the_caller_learns_it(
        self, change: dict[str, Any], code: str
    ) -> None:
        async def story() -> tuple[WorkerHarness, list[bytes]]:
            harness = WorkerHarness()
            for name, value in change.items():
                setattr(harness.executions, name, value)
            harness.gate.answers_s = 3.0
            return harness, await harness.start(order())

        harness, lines = run(story())
        assert harness.gate.returned == [Return("i", 1, "refused", "w")]
        assert lines[0] == ALIVE
        last = json.loads(lines[-1])
        assert (last["code"], last["status"], last["final"]) == (code, 503, False)
        assert not harness.engine.requests

    def test_the_caller_of_a_returned_attempt_does_not_wait_for_the_log_for_ever(self) -> None:
        async def story() -> float:
            harness = WorkerHarness()
            harness.executions.accepting = False
            harness.gate.away = True
            assert set(await harness.start(order())) == {ALIVE}
            return harness.clock.now() - START

        assert run(story()) == RETURN_S

    def test_a_worker_with_too_many_reports_under_way_takes_nothing(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            harness.outbox._deliveries = dict.fromkeys(map(str, range(PENDING_MAX)))  # type: ignore[assignment]
            with pytest.raises(Refusal, match="too many reports"):
                harness.lines(order())

        run(story())

    def test_a_fenced_attempt_does_not_begin(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            harness.gate.offer("i")
            harness.executions.fence("i#1", is_old=False)
            with pytest.raises(Refusal):
                harness.executions.run(harness.token(order()), order())
            await harness.executions.idle()
            assert harness.gate.returned == [Return("i", 1, "not_begun", "w")]
            assert harness.gate.over["i#1"] == Done()
            assert harness.executions.fenced == {"not_begun": 1}

        run(story())

    def test_an_attempt_that_runs_is_not_fenced(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            reading = harness.start(order())
            harness.executions.fence("i#1", is_old=False)
            assert json.loads((await reading)[-1])["event"] == "finished"
            assert not harness.gate.returned

        run(story())


Step = tuple[str, int, float]


@given(
    st.lists(
        st.tuples(st.sampled_from(["order", "leave", "abort", "away", "back"]), st.integers(0, 9), st.floats(0, 2)),
        max_size=25,
    )
)
@settings(deadline=None, max_examples=150)
def test_slots_are_never_exceeded_and_each_attempt_is_reported_once(steps: list[Step]) -> None:
    async def story() -> None:
        harness = WorkerHarness()
        most, reading = 0, dict[int, asyncio.Future[list[bytes]]]()
        attempts = 0
        for action, number, pause_s in steps:
            if action == "order":
                attempts += 1
                work = order(f"c{attempts}", max_tokens=1 + number, deadline_at=harness.clock.now() + 1 + number)
                reading[attempts] = harness.start(work)
            elif action == "leave" and number in reading:
                reading[number].cancel()
            elif action == "abort":
                await harness.executions.abort(f"c{number}#1", Abort.CUT_OFF)
            elif action in ("away", "back"):
                harness.gate.away = action == "away"
            await asyncio.sleep(pause_s)
            most = max(most, len(harness.engine.running), len(harness.executions.running()))
        harness.gate.away = False
        await harness.executions.idle()
        await asyncio.gather(*reading.values(), return_exceptions=True)
        assert most <= SLOTS
        reports: list[End | Return] = [*harness.gate.ended, *harness.gate.returned]
        reported = [(report.id, report.attempt) for report in reports]
        assert sorted(reported) == sorted((f"c{number}", 1) for number in range(1, attempts + 1))
        assert sum(end.output_tokens for end in harness.gate.ended) <= harness.engine.generated
        assert not harness.gate.held

    run(story())
