"""Executions that the worker aborts, and what it reports of them."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.model.commands import Return
from gpu_worker.service.executions.execution import Abort
from tests.support.virtual_time import START
from tests.support.worker.harness import WorkerHarness, order, read
from tests.support.worker.scripted_engine import ScriptedEngine, TokenizingEngine

pytestmark = pytest.mark.virtual_time


class TestAborts:
    async def test_an_attempt_that_the_log_does_not_hold_is_not_reported(self) -> None:
        harness = WorkerHarness()
        reading = harness.start(order(max_tokens=500))
        await asyncio.sleep(1)
        await harness.executions.abort("i#1", Abort.LEASE_LOST)
        lines = await reading
        assert harness.gate.tries == 0
        assert json.loads(lines[-1])["event"] == "token"
        assert harness.executions.live() == frozenset()

    async def test_also_if_its_caller_leaves_later(self) -> None:
        harness = WorkerHarness()
        lines = harness.lines(order(max_tokens=500))
        await anext(lines)
        await harness.executions.abort("i#1", Abort.LEASE_LOST)
        await lines.aclose()
        await harness.executions.idle()
        assert harness.gate.tries == 0

    @pytest.mark.parametrize(("why", "reason"), [(Abort.DRAINED, "refused"), (Abort.CUT_OFF, "lost")])
    async def test_without_a_token_the_attempt_goes_back(self, why: Abort, reason: str) -> None:
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
    async def test_after_tokens_the_call_ends_and_is_charged_for_them(self, why: Abort) -> None:
        harness = WorkerHarness()
        reading = harness.start(order(max_tokens=500))
        await asyncio.sleep(1)
        await harness.executions.abort("i#1", why)
        lines = await reading
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("failed", harness.engine.generated)
        assert json.loads(lines[-1])["final"]

    @pytest.mark.parametrize("token_s", [0.001, 0.1, 0.7, 30.0])
    async def test_past_its_deadline_it_is_aborted_at_the_next_step(self, token_s: float) -> None:
        harness = WorkerHarness(ScriptedEngine(token_s=token_s))
        lines = await harness.start(order(max_tokens=10_000, deadline_at=START + 2))
        last, took_s = json.loads(lines[-1]), harness.clock.now() - START
        assert (last["event"], last["status"], last["code"]) == ("refused", 504, "deadline_exceeded")
        assert last["final"]
        assert 2 <= took_s <= max(2.0, token_s) + 2 * token_s
        (end,) = harness.gate.ended
        assert (end.outcome, end.output_tokens) == ("expired", harness.engine.generated)

    async def test_a_deadline_that_passes_while_the_reader_dawdles_is_kept_too(self) -> None:
        """Tokens are ready whenever it looks: it must not take that for the engine being in time."""
        harness = WorkerHarness(ScriptedEngine(token_s=0.5))
        lines = harness.lines(order(max_tokens=200, deadline_at=START + 1))
        await anext(lines)
        await anext(lines)
        await asyncio.sleep(1)
        await read(lines)
        assert harness.gate.ended[0].outcome == "expired"
