"""Executions that the worker aborts, and what it reports of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dispatcher.model.commands import Return
from gpu_worker.service.executions.execution import Abort
from tests.support.worker.harness import WorkerHarness, order, read
from tests.support.worker.scripted_engine import ScriptedEngine, TokenizingEngine
from tests.support.world.virtual_time import START, run


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
            harness = WorkerHarness(TokenizingEngine())
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
