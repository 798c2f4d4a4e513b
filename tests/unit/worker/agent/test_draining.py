"""A worker that drains finishes its work, reports it, and signs off."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.model.commands import Command, End, Outcome
from dispatcher.model.errors import StoreUnavailable
from tests.support.virtual_time import START
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.serving import HEARTBEAT_S, LONG, SETTINGS, drained, serving

pytestmark = pytest.mark.virtual_time


class TestDraining:
    async def test_work_finishes_and_stays_leased_and_the_worker_is_gone_after(self) -> None:
        async with serving(WorkerHarness()) as harness:
            reading = harness.start(order(max_tokens=200, deadline_at=START + 1000))
            draining = asyncio.ensure_future(drained(harness))
            for _ in range(19):  # of 20 s: twice the lease
                seen = len(harness.gate.heartbeats)
                await asyncio.sleep(HEARTBEAT_S)
                if reading.done():
                    break
                assert len(harness.gate.heartbeats) > seen
                assert harness.gate.heartbeats[-1].draining
                assert not harness.executions.accepting
                refused = json.loads((await harness.start(order(f"new{seen}")))[-1])
                assert (refused["code"], refused["final"]) == ("draining", False)
            assert json.loads((await reading)[-1])["event"] == "finished"
            await draining
            assert harness.gate.left
            await asyncio.sleep(10)
            assert harness.gate.left, "a heartbeat brought it back"

    async def test_unfinished_work_is_aborted_and_its_end_reported(self) -> None:
        async with serving(WorkerHarness()) as harness:
            reading = harness.start(LONG)
            await drained(harness)
            last = json.loads((await reading)[-1])
            assert (last["code"], last["final"]) == ("draining", True)
            assert [end.outcome for end in harness.gate.ended] == ["failed"]
            assert harness.gate.left
            assert SETTINGS.drain_s <= harness.clock.now() - START <= SETTINGS.drain_s + 1

    async def test_at_the_machines_last_moment_the_rest_is_aborted(self) -> None:
        async with serving(WorkerHarness()) as harness:
            reading = harness.start(LONG)
            draining = asyncio.ensure_future(drained(harness))
            await asyncio.sleep(2)
            harness.agent.last_moment.set()
            assert json.loads((await reading)[-1])["code"] == "draining"
            await draining
            assert harness.gate.left
            assert 2 <= harness.clock.now() - START <= 3 < SETTINGS.drain_s

    async def test_a_hanging_engine_does_not_hold_it_longer_than_stated(self) -> None:
        """The engine does not end an aborted request, and the gate does not answer."""
        async with serving(WorkerHarness()) as harness:
            harness.engine.token_s = 10_000.0
            harness.start(LONG)
            await asyncio.sleep(1)
            harness.gate.away, harness.gate.hangs_s = True, 10_000.0
            await drained(harness)
            assert harness.clock.now() - START - 1 <= SETTINGS.drain_s + 2 * SETTINGS.abort_s + 0.1

    async def test_it_does_not_leave_while_a_report_is_missing(self) -> None:
        """The log would take its attempts for returned, and their tokens would be free."""
        async with serving(WorkerHarness()) as harness:
            whole = harness.gate.do

            async def ends_get_lost(command: Command) -> Outcome:
                if isinstance(command, End):
                    raise StoreUnavailable()
                return await whole(command)

            harness.gate.do = ends_get_lost  # type: ignore[method-assign]
            harness.start(order())
            await drained(harness)
            assert not harness.gate.left
            assert harness.gate.held

    async def test_an_idle_worker_is_gone_at_once_though_the_gate_is_away(self) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.gate.away = True
            await drained(harness)
            assert harness.clock.now() - START == 0

    async def test_a_heartbeat_under_way_does_not_bring_it_back(self) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.gate.answers_s = 1.0
            await asyncio.sleep(1.0)
            await drained(harness)
            await asyncio.sleep(5)
            assert harness.gate.left
