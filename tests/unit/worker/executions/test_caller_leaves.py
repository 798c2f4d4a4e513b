"""After its caller has closed the stream, an execution ends once, with the exact counts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpu_worker.engines.interface import EngineError
from tests.support.virtual_time import START, run
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import FailingEngine, TokenizingEngine

pytestmark = pytest.mark.virtual_time


async def left(harness: WorkerHarness, lines_read: int, **fields: Any) -> None:
    """Read so many lines of an order, close the stream, and wait until the execution has ended."""
    lines = harness.lines(order(max_tokens=500, **fields))
    for _ in range(lines_read):
        await anext(lines)
    await lines.aclose()
    await harness.executions.idle()


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

    async def test_while_its_prompt_is_tokenized_it_generates_next_to_nothing(self) -> None:
        harness = WorkerHarness(TokenizingEngine())
        reading = harness.start(order(max_tokens=500))
        await asyncio.sleep(0.5)
        reading.cancel()
        await asyncio.wait({reading})
        await harness.executions.idle()
        assert harness.engine.generated <= 1
        (end,) = harness.gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("cancelled", 5, harness.engine.generated)

    def test_an_engine_that_fails_meanwhile_frees_the_slot(self) -> None:
        harness = WorkerHarness(FailingEngine(EngineError("engine_failed", "it failed"), 2))
        run(left(harness, 3))
        assert harness.executions.live() == frozenset()
        assert [end.outcome for end in harness.gate.ended] == ["cancelled"]

    async def test_a_durable_call_goes_on_and_its_answer_is_kept(self) -> None:
        harness = WorkerHarness()
        lines = harness.lines(order(max_tokens=5, durable=True))
        await anext(lines)
        await lines.aclose()
        await harness.executions.idle()
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("done", 5)
        assert json.loads(end.answer) == {"choices": [{"text": "xxxxx", "reason": "length"}]}

    def test_a_durable_call_ends_at_its_deadline_too(self) -> None:
        harness = WorkerHarness()
        run(left(harness, 1, durable=True, deadline_at=START + 3))
        (end,) = harness.gate.ended
        assert end.outcome == "expired"
        assert json.loads(end.answer)["error"]["code"] == "deadline_exceeded"
        assert json.loads(end.answer)["status"] == 504
