"""The last event of an execution comes when the log has the end and the slot is free."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.model.commands import Over
from dispatcher.workers.wire import parse_event
from gpu_worker.service.executions.executions import ALIVE
from tests.support.virtual_time import START
from tests.support.worker.harness import WorkerHarness, order

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

    async def test_a_fenced_attempt_closes_without_it(self) -> None:
        harness = WorkerHarness()
        reading = harness.start(order())
        await asyncio.sleep(0.05)
        harness.gate.held.clear()
        assert json.loads((await reading)[-1])["event"] == "token"

    @pytest.mark.parametrize("outcome", [Over("i", 1, "cancelled"), Over("i", 2, "done")])
    async def test_an_end_that_the_log_knows_otherwise_closes_without_it_too(self, outcome: Over) -> None:
        harness = WorkerHarness()
        reading = harness.start(order())
        await asyncio.sleep(0.05)
        harness.gate.held.clear()
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
