"""The answers that executions store for durable calls."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dispatcher.model.records.invocation import StoredAnswer, cached_tokens_of
from dispatcher.operations.calls.results import last_event
from gpu_worker.engines.interface import Finished, WorkOrder
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine, TokenizingEngine

pytestmark = pytest.mark.virtual_time


class TestAnswers:
    async def test_the_time_to_the_first_token_is_reported(self) -> None:
        harness = WorkerHarness(TokenizingEngine())
        await harness.start(order())
        assert harness.gate.ended[0].first_token_s == pytest.approx(1.1)

    async def test_a_call_that_is_not_durable_has_no_answer(self) -> None:
        harness = WorkerHarness()
        await harness.start(order())
        assert harness.gate.ended[0].answer == ""

    async def test_an_answer_that_is_too_long_is_not_kept_and_the_caller_learns_it(self) -> None:
        class Wordy(ScriptedEngine):
            async def generate(self, request: WorkOrder):  # type: ignore[no-untyped-def]
                async for event in super().generate(request):
                    if event.event == "token":
                        event = type(event)("é" * 100_000, event.output_tokens)
                    yield event

        harness = WorkerHarness(Wordy())
        lines = await harness.start(order(durable=True))
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("failed", 3)
        assert json.loads(end.answer)["error"]["code"] == "result_too_large"
        assert json.loads(lines[-1])["code"] == "result_too_large"

    async def test_it_keeps_the_cached_and_the_reasoning_tokens(self) -> None:
        class Caching(ScriptedEngine):
            async def generate(self, request: WorkOrder):  # type: ignore[no-untyped-def]
                async for event in super().generate(request):
                    if isinstance(event, Finished):
                        event = replace(event, cached_tokens=2, reasoning_tokens=1)
                    yield event

        harness = WorkerHarness(Caching())
        await harness.start(order(durable=True))
        end = harness.gate.ended[0]
        answer = StoredAnswer("done", 1, end.input_tokens, end.output_tokens, end.answer, 0.0)
        assert end.cached_tokens == cached_tokens_of(answer) == 2
        spent = last_event(answer)
        assert (spent.cached_tokens, spent.reasoning_tokens) == (2, 1)
        assert cached_tokens_of(StoredAnswer("failed", 1, 3, 0, '{"error": {}}', 0.0)) == 0

    async def test_half_of_a_character_does_not_break_it(self) -> None:
        class Halves(ScriptedEngine):
            async def generate(self, request: WorkOrder):  # type: ignore[no-untyped-def]
                async for event in super().generate(request):
                    if event.event == "token":
                        event = type(event)("\ud83d", event.output_tokens)
                    yield event

        harness = WorkerHarness(Halves())
        lines = harness.lines(order(durable=True, max_tokens=1))
        await anext(lines)
        await lines.aclose()
        await harness.executions.idle()
        assert json.loads(harness.gate.ended[0].answer)["choices"][0]["text"] == "?"
