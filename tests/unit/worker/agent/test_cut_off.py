"""A worker that cannot reach its gate aborts its work before its lease ends."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.virtual_time import START
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.serving import HEARTBEAT_S, LONG, SETTINGS, serving

pytestmark = pytest.mark.virtual_time


class TestCutOff:
    @pytest.mark.parametrize("hangs_s", [0.0, 1.0, 43.0, 10_000.0])
    async def test_it_aborts_before_its_lease_ends_however_the_gate_fails(self, hangs_s: float) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.start(LONG)
            await asyncio.sleep(5)
            harness.gate.away, harness.gate.hangs_s = True, hangs_s
            away_at = harness.clock.now()
            while harness.executions.running():
                await asyncio.sleep(0.05)
            took_s = harness.clock.now() - away_at
            until_s = SETTINGS.lease_s - SETTINGS.margin_s
            assert until_s - HEARTBEAT_S <= took_s <= until_s + SETTINGS.watch_s + 0.2
            assert not harness.executions.accepting

    @pytest.mark.parametrize("away", [False, True])
    async def test_after_a_suspension_the_wall_clock_counts_if_no_heartbeat_is_answered(self, away: bool) -> None:
        """The monotonic clock stood still. With an answer, the wall clock was only set."""
        async with serving(WorkerHarness()) as harness:
            harness.start(LONG)
            await asyncio.sleep(5)
            harness.gate.away, now = away, harness.clock.now
            harness.clock.now = lambda: now() + SETTINGS.lease_s  # type: ignore[method-assign]
            await asyncio.sleep(2 * HEARTBEAT_S + SETTINGS.watch_s)
            assert bool(harness.executions.running()) is not away

    async def test_the_lease_counts_from_the_heartbeat_and_not_from_its_answer(self) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.gate.answers_s = 4.0
            await asyncio.sleep(20)
            harness.start(LONG)
            seen = len(harness.gate.heartbeats)
            while len(harness.gate.heartbeats) == seen:
                await asyncio.sleep(0.01)
            answered_at = harness.clock.now()
            harness.gate.away = True
            while harness.executions.running():
                await asyncio.sleep(0.05)
            took_s = harness.clock.now() - answered_at + harness.gate.answers_s
            assert took_s <= SETTINGS.lease_s - SETTINGS.margin_s + SETTINGS.watch_s + 0.2

    async def test_what_it_aborted_is_charged_when_the_gate_is_back_unless_it_was_given_away(self) -> None:
        async with serving(WorkerHarness()) as harness:
            work = order("j", max_tokens=900, deadline_at=START + 1000)
            kept, given = harness.start(LONG), harness.start(work)
            harness.gate.away = True
            await asyncio.sleep(20)
            assert not kept.done()
            del harness.gate.held["j#1"]
            harness.gate.away = False
            last = json.loads((await kept)[-1])
            assert (last["code"], last["final"]) == ("cut_off", True)
            assert json.loads((await given)[-1])["event"] == "alive"
            (end,) = harness.gate.ended
            assert (end.id, end.outcome) == ("i", "failed")
            assert 60 < end.output_tokens < 80

    async def test_it_takes_work_again_when_a_heartbeat_is_answered(self) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.gate.away = True
            await asyncio.sleep(30)
            assert not harness.executions.accepting
            harness.gate.away = False
            await asyncio.sleep(HEARTBEAT_S)
            assert harness.executions.accepting
            assert json.loads((await harness.start(order()))[-1])["event"] == "finished"

    @pytest.mark.parametrize("away_s", [20, 21, 22, 23, 24])
    async def test_an_end_is_reported_with_the_first_heartbeat_that_is_answered(self, away_s: float) -> None:
        async with serving(WorkerHarness()) as harness:
            reading = harness.start(order())
            harness.gate.away = True
            await asyncio.sleep(away_s)
            harness.gate.away, back_at = False, harness.clock.now()
            assert json.loads((await reading)[-1])["event"] == "finished"
            assert harness.clock.now() - back_at <= HEARTBEAT_S

    async def test_a_short_absence_costs_nothing(self) -> None:
        async with serving(WorkerHarness()) as harness:
            reading = harness.start(LONG)
            harness.gate.away = True
            await asyncio.sleep(SETTINGS.lease_s - SETTINGS.margin_s - HEARTBEAT_S)
            harness.gate.away = False
            assert json.loads((await reading)[-1])["event"] == "finished"


async def test_if_the_heartbeats_end_it_aborts_its_work_and_leaves() -> None:
    harness = WorkerHarness()

    async def fails() -> None:
        await asyncio.sleep(5)
        raise RuntimeError("a bug")

    harness.agent.run = fails  # type: ignore[method-assign]
    await harness.agent.join()
    reading = harness.start(LONG)
    await harness.agent.serve(harness.stop.wait())
    assert json.loads((await reading)[-1])["code"] == "cut_off"
    assert harness.gate.left
    assert 5 <= harness.clock.now() - START < 6
