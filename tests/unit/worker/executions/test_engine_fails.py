"""Executions that the engine ends with an error: returned, or ended and charged."""

from __future__ import annotations

import json

import pytest

from dispatcher.model.commands import Return
from gpu_worker.engines.interface import EngineError, Evicted
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import FailingEngine

pytestmark = pytest.mark.virtual_time


class TestTheEngineFails:
    """Before the first token another worker may serve the call; after it the caller has a part of an answer."""

    @pytest.mark.parametrize("error", [EngineError("engine_restarted", "it was"), RuntimeError("canary")])
    async def test_before_the_first_token_the_attempt_is_returned(self, error: Exception) -> None:
        harness = WorkerHarness(FailingEngine(error, 0))
        lines = await harness.start(order())
        assert harness.gate.returned == [Return("i", 1, "failed", "w")]
        assert not harness.gate.ended
        last = json.loads(lines[-1])
        assert (last["event"], last["status"], last["final"]) == ("refused", 500, False)
        assert b"canary" not in lines[-1]

    @pytest.mark.parametrize("error", [EngineError("engine_restarted", "it was"), RuntimeError("canary")])
    async def test_after_it_the_call_ends_with_the_tokens_that_were_sent(self, error: Exception) -> None:
        harness = WorkerHarness(FailingEngine(error, 2))
        lines = await harness.start(order())
        assert not harness.gate.returned
        (end,) = harness.gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 5, 2)
        assert json.loads(lines[-1])["final"]
        assert harness.executions.live() == frozenset()

    @pytest.mark.parametrize(("status", "answered"), [(None, 400), (400, 400), (413, 413), (422, 422), (500, 400)])
    async def test_a_fault_of_the_request_has_the_servers_status(self, status: int | None, answered: int) -> None:
        harness = WorkerHarness(FailingEngine(EngineError("invalid_request", "no", status=status), 0))
        lines = await harness.start(order())
        assert [end.outcome for end in harness.gate.ended] == ["failed"]
        last = json.loads(lines[-1])
        assert (last["status"], last["code"], last["final"]) == (answered, "invalid_request", True)

    @pytest.mark.parametrize("fields", [{"durable": True}, {"streamed": False}, {"durable": True, "streamed": False}])
    async def test_a_call_that_is_answered_as_a_whole_is_returned_also_after_tokens(
        self, fields: dict[str, bool]
    ) -> None:
        harness = WorkerHarness(FailingEngine(EngineError("engine_restarted", "it was"), 2))
        await harness.start(order(**fields))  # type: ignore[arg-type]
        assert harness.gate.returned == [Return("i", 1, "failed", "w")]

    async def test_a_durable_call_that_is_evicted_ends_with_an_answer(self) -> None:
        harness = WorkerHarness(FailingEngine(Evicted(), 2))
        await harness.start(order(durable=True))
        (end,) = harness.gate.ended
        answer = json.loads(end.answer)
        assert (end.outcome, answer["status"], answer["error"]["code"]) == ("failed", 503, "preempted")
        assert answer["retry_after_s"] > 0

    async def test_a_request_that_is_refused_before_a_token_is_not_charged(self) -> None:
        harness = WorkerHarness(FailingEngine(Evicted(), 0))
        await harness.start(order())
        (end,) = harness.gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 0, 0)
