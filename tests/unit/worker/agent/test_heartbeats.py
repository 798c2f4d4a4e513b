"""The heartbeats of a worker: what they report, and how the agent joins."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest

from dispatcher.model.commands import Command, Done, Outcome, Report
from dispatcher.model.errors import StoreUnavailable
from tests.support.virtual_time import START, run
from tests.support.worker.harness import IDENTITY, WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine
from tests.support.worker.serving import HEARTBEAT_S, LONG, SETTINGS, serving

pytestmark = pytest.mark.virtual_time


class TestHeartbeats:
    async def test_they_tell_its_load_and_its_live_attempts(self) -> None:
        async with serving(WorkerHarness()) as harness:
            reading = harness.start(LONG)
            harness.engine.waiting = 3
            await asyncio.sleep(60)
            seen = harness.gate.heartbeats[-1]
            assert (seen.worker, seen.url, seen.slots) == ("w", "http://w", 2)
            assert (seen.kv_use, seen.queue_length, seen.live, seen.draining) == (0.5, 3, ("i#1",), False)
            assert seen.service_per_s == pytest.approx(20, rel=0.1)  # 2 each 0.1 s
            assert not reading.done()
            reading.cancel()

    async def test_an_attempt_whose_report_is_under_way_is_live(self) -> None:
        async with serving(WorkerHarness()) as harness:
            whole = harness.gate.do

            async def ends_get_lost(command: Command) -> Outcome:
                if not isinstance(command, Report):
                    raise StoreUnavailable()
                return await whole(command)

            harness.gate.do = ends_get_lost  # type: ignore[method-assign]
            harness.start(order())
            await asyncio.sleep(10)
            assert harness.executions.running() == frozenset()
            assert harness.gate.heartbeats[-1].live == ("i#1",)
            harness.gate.do = whole  # type: ignore[method-assign]
            await asyncio.sleep(10)
            assert not harness.gate.heartbeats[-1].live
            assert [end.outcome for end in harness.gate.ended] == ["done"]

    def test_they_are_jittered(self) -> None:
        async def story(seed: int) -> list[float]:
            harness = WorkerHarness()
            harness.agent.random = Random(seed)
            sent: list[float] = []
            whole = harness.gate.do

            async def noted(command: Command) -> Outcome:
                sent.append(harness.clock.now())
                return await whole(command)

            harness.gate.do = noted  # type: ignore[method-assign]
            async with serving(harness):
                await asyncio.sleep(40)
            return [after - before for before, after in pairwise(sent)]

        one, other = run(story(1)), run(story(2))
        assert one != other
        assert all(0.8 * SETTINGS.heartbeat_s <= gap <= HEARTBEAT_S + 0.001 for gap in one + other)

    @pytest.mark.parametrize("error", [StoreUnavailable, RuntimeError])
    async def test_an_error_does_not_end_them(self, error: type[Exception]) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.gate.error, harness.gate.away = error, True
            await asyncio.sleep(5)
            harness.gate.away = False
            seen = len(harness.gate.heartbeats)
            await asyncio.sleep(5)
            assert len(harness.gate.heartbeats) >= seen + 4
            assert harness.executions.accepting

    async def test_while_its_engine_is_replaced_it_says_that_it_drains(self) -> None:
        async with serving(WorkerHarness()) as harness:
            harness.executions.engine_serves = lambda: False
            await asyncio.sleep(2)
            assert harness.gate.heartbeats[-1].draining
            harness.executions.engine_serves = lambda: True
            await asyncio.sleep(2)
            assert not harness.gate.heartbeats[-1].draining


class TestJoining:
    async def test_it_tries_again_while_the_gate_is_away(self) -> None:
        harness = WorkerHarness()
        harness.gate.away = True
        joining = asyncio.ensure_future(harness.agent.join())
        await asyncio.sleep(20)
        assert not joining.done()
        harness.gate.away = False
        await joining
        assert len(harness.gate.heartbeats) == 1

    @pytest.mark.parametrize("hangs_s", [0.0, 1000.0])
    async def test_and_not_for_ever(self, hangs_s: float) -> None:
        harness = WorkerHarness()
        harness.gate.away, harness.gate.hangs_s = True, hangs_s
        with pytest.raises(StoreUnavailable, match="60 s"):
            await harness.agent.join()
        assert SETTINGS.join_s / 2 < harness.clock.now() - START <= SETTINGS.join_s + SETTINGS.answer_s


async def test_an_answer_of_another_kind_is_none() -> None:
    harness = WorkerHarness()

    async def done(command: Command) -> Outcome:
        return Done()

    harness.gate.do = done  # type: ignore[method-assign]
    assert not (await harness.agent.heartbeat())


async def test_a_heartbeat_is_the_identity_with_what_changes() -> None:
    harness = WorkerHarness(ScriptedEngine())
    await harness.agent.heartbeat()
    assert harness.gate.heartbeats[0] == IDENTITY._replace(kv_use=0.5)
