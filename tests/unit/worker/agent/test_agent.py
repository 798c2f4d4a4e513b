"""The agent: heartbeats, the lease that ends without them, and the drain at the end."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from random import Random

import pytest

from dispatcher.model.commands import Command, Done, End, Outcome, Return
from dispatcher.model.errors import StoreUnavailable
from tests.support.worker.harness import HEARTBEAT_S, IDENTITY, LONG, SETTINGS, WorkerHarness, drained, order, serving
from tests.support.worker.scripted_engine import ScriptedEngine
from tests.support.world.virtual_time import START, run

pytestmark = pytest.mark.virtual_time


class TestHeartbeats:
    async def test_they_tell_its_load_and_its_live_attempts(self, harness: WorkerHarness) -> None:
        reading = harness.start(LONG)
        harness.engine.waiting = 3
        await asyncio.sleep(60)
        seen = harness.gate.heartbeats[-1]
        assert (seen.worker, seen.url, seen.slots) == ("w", "http://w", 2)
        assert (seen.kv_use, seen.queue_length, seen.live, seen.draining) == (0.5, 3, ("i#1",), False)
        assert seen.service_per_s == pytest.approx(20, rel=0.1)  # 2 each 0.1 s
        assert not reading.done()
        reading.cancel()

    async def test_a_worker_with_all_slots_taken_has_a_measured_capacity(self, harness: WorkerHarness) -> None:
        """Where the engine's batch is as large as the slots, nothing ever waits in the engine: without a capacity the
        gate would plan no swap."""
        readings = [harness.start(LONG)]
        await asyncio.sleep(30)
        assert harness.gate.heartbeats[-1].service_per_s == 0.0, "a slot is free"
        readings.append(harness.start(order("j", max_tokens=900, deadline_at=START + 1000)))
        await asyncio.sleep(30)
        seen = harness.gate.heartbeats[-1]
        assert (seen.queue_length, len(seen.live)) == (0, seen.slots)
        assert seen.service_per_s == pytest.approx(40, rel=0.1)  # two requests with 2 each 0.1 s
        for each in readings:
            each.cancel()

    async def test_an_attempt_whose_report_is_under_way_is_live(self, harness: WorkerHarness) -> None:
        harness.gate.loses = (End, Return)
        harness.start(order())
        await asyncio.sleep(10)
        assert harness.executions.running() == frozenset()
        assert harness.gate.heartbeats[-1].live == ("i#1",)
        harness.gate.loses = ()
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
    async def test_an_error_does_not_end_them(self, harness: WorkerHarness, error: type[Exception]) -> None:
        harness.gate.error, harness.gate.away = error, True
        await asyncio.sleep(5)
        harness.gate.away = False
        seen = len(harness.gate.heartbeats)
        await asyncio.sleep(5)
        assert len(harness.gate.heartbeats) >= seen + 4
        assert harness.executions.accepting

    async def test_while_its_engine_is_replaced_it_says_that_it_drains(self, harness: WorkerHarness) -> None:
        harness.executions.engine_serves = lambda: False
        await asyncio.sleep(2)
        assert harness.gate.heartbeats[-1].draining
        harness.executions.engine_serves = lambda: True
        await asyncio.sleep(2)
        assert not harness.gate.heartbeats[-1].draining


async def test_a_worker_tries_again_to_join_while_the_gate_is_away() -> None:
    harness = WorkerHarness()
    harness.gate.away = True
    joining = asyncio.ensure_future(harness.agent.join())
    await asyncio.sleep(20)
    assert not joining.done()
    harness.gate.away = False
    await joining
    assert len(harness.gate.heartbeats) == 1


@pytest.mark.parametrize("hangs_s", [0.0, 1000.0])
async def test_a_worker_does_not_try_to_join_for_ever(hangs_s: float) -> None:
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


@pytest.mark.parametrize("hangs_s", [0.0, 1.0, 43.0, 10_000.0])
async def test_work_is_aborted_before_the_lease_ends_however_the_gate_fails(
    harness: WorkerHarness, hangs_s: float
) -> None:
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
async def test_after_a_suspension_the_wall_clock_counts_if_no_heartbeat_is_answered(
    harness: WorkerHarness, away: bool
) -> None:
    """The monotonic clock stood still. With an answer, the wall clock was only set."""
    harness.start(LONG)
    await asyncio.sleep(5)
    harness.gate.away, now = away, harness.clock.now
    harness.clock.now = lambda: now() + SETTINGS.lease_s  # type: ignore[method-assign]
    await asyncio.sleep(2 * HEARTBEAT_S + SETTINGS.watch_s)
    assert bool(harness.executions.running()) is not away


async def test_the_lease_counts_from_the_heartbeat_and_not_from_its_answer(harness: WorkerHarness) -> None:
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


async def test_what_was_aborted_is_charged_when_the_gate_is_back_unless_it_was_given_away(
    harness: WorkerHarness,
) -> None:
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


async def test_a_worker_takes_work_again_when_a_heartbeat_is_answered(harness: WorkerHarness) -> None:
    harness.gate.away = True
    await asyncio.sleep(30)
    assert not harness.executions.accepting
    harness.gate.away = False
    await asyncio.sleep(HEARTBEAT_S)
    assert harness.executions.accepting
    assert json.loads((await harness.start(order()))[-1])["event"] == "finished"


@pytest.mark.parametrize("away_s", [20, 21, 22, 23, 24])
async def test_an_end_is_reported_with_the_first_heartbeat_that_is_answered(
    harness: WorkerHarness, away_s: float
) -> None:
    reading = harness.start(order())
    harness.gate.away = True
    await asyncio.sleep(away_s)
    harness.gate.away, back_at = False, harness.clock.now()
    assert json.loads((await reading)[-1])["event"] == "finished"
    assert harness.clock.now() - back_at <= HEARTBEAT_S


async def test_a_short_absence_costs_nothing(harness: WorkerHarness) -> None:
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


async def test_work_finishes_and_stays_leased_and_the_worker_is_gone_after(harness: WorkerHarness) -> None:
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


async def test_unfinished_work_is_aborted_and_its_end_reported(harness: WorkerHarness) -> None:
    reading = harness.start(LONG)
    await drained(harness)
    last = json.loads((await reading)[-1])
    assert (last["code"], last["final"]) == ("draining", True)
    assert [end.outcome for end in harness.gate.ended] == ["failed"]
    assert harness.gate.left
    assert SETTINGS.drain_s <= harness.clock.now() - START <= SETTINGS.drain_s + 1


async def test_at_the_machines_last_moment_the_rest_is_aborted(harness: WorkerHarness) -> None:
    reading = harness.start(LONG)
    draining = asyncio.ensure_future(drained(harness))
    await asyncio.sleep(2)
    harness.agent.last_moment.set()
    assert json.loads((await reading)[-1])["code"] == "draining"
    await draining
    assert harness.gate.left
    assert 2 <= harness.clock.now() - START <= 3 < SETTINGS.drain_s


async def test_a_hanging_engine_does_not_hold_a_drain_longer_than_stated(harness: WorkerHarness) -> None:
    """The engine does not end an aborted request, and the gate does not answer."""
    harness.engine.token_s = 10_000.0
    harness.start(LONG)
    await asyncio.sleep(1)
    harness.gate.away, harness.gate.hangs_s = True, 10_000.0
    await drained(harness)
    assert harness.clock.now() - START - 1 <= SETTINGS.drain_s + 2 * SETTINGS.abort_s + 0.1


async def test_a_worker_does_not_leave_while_a_report_is_missing(harness: WorkerHarness) -> None:
    """The log would take its attempts for returned, and their tokens would be free."""
    harness.gate.loses = (End,)
    harness.start(order())
    await drained(harness)
    assert not harness.gate.left
    assert harness.gate.held


async def test_an_idle_worker_is_gone_at_once_though_the_gate_is_away(harness: WorkerHarness) -> None:
    harness.gate.away = True
    await drained(harness)
    assert harness.clock.now() - START == 0


async def test_a_heartbeat_under_way_does_not_bring_a_worker_back(harness: WorkerHarness) -> None:
    harness.gate.answers_s = 1.0
    await asyncio.sleep(1.0)
    await drained(harness)
    await asyncio.sleep(5)
    assert harness.gate.left
