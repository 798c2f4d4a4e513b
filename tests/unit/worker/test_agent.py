"""The agent against a scripted gate: heartbeats, what their answers require, aborts in time, drains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random

import pytest

from dispatcher.model.commands import Attempts, Command, Done, End, Outcome, Report, Return
from dispatcher.model.errors import StoreUnavailable
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.service.agent import AgentSettings
from gpu_worker.service.held_attempts import OFFER_S, UNKNOWN_S, HeldAttempts
from headgate.simulator.virtual_time import START, run
from tests.support.worker.harness import IDENTITY, WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine

SETTINGS = AgentSettings()
HEARTBEAT_S = 1.2 * SETTINGS.heartbeat_s
"""The longest time between two heartbeats."""
LONG = order(max_tokens=900, deadline_at=START + 1000)


@asynccontextmanager
async def serving(harness: WorkerHarness) -> AsyncIterator[WorkerHarness]:
    """Join and serve. `harness.stop` is the signal; `harness.serving` then drains."""
    await harness.agent.join()
    harness.serving = asyncio.ensure_future(harness.agent.serve(harness.stop.wait()))
    try:
        yield harness
        assert harness.stop.is_set() or not harness.serving.done(), "the heartbeats ended"
    finally:
        harness.serving.cancel()
        await asyncio.wait({harness.serving})


async def drained(harness: WorkerHarness) -> None:
    harness.stop.set()
    await harness.serving


class TestHeartbeats:
    def test_they_tell_its_load_and_its_live_attempts(self) -> None:
        async def story() -> None:
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

        run(story())

    def test_an_attempt_whose_report_is_under_way_is_live(self) -> None:
        async def story() -> None:
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

        run(story())

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
    def test_an_error_does_not_end_them(self, error: type[Exception]) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                harness.gate.error, harness.gate.away = error, True
                await asyncio.sleep(5)
                harness.gate.away = False
                seen = len(harness.gate.heartbeats)
                await asyncio.sleep(5)
                assert len(harness.gate.heartbeats) >= seen + 4
                assert harness.executions.accepting

        run(story())

    def test_while_its_engine_is_replaced_it_says_that_it_drains(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                harness.executions.engine_serves = lambda: False
                await asyncio.sleep(2)
                assert harness.gate.heartbeats[-1].draining
                harness.executions.engine_serves = lambda: True
                await asyncio.sleep(2)
                assert not harness.gate.heartbeats[-1].draining

        run(story())


class TestJoining:
    def test_it_tries_again_while_the_gate_is_away(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            harness.gate.away = True
            joining = asyncio.ensure_future(harness.agent.join())
            await asyncio.sleep(20)
            assert not joining.done()
            harness.gate.away = False
            await joining
            assert len(harness.gate.heartbeats) == 1

        run(story())

    @pytest.mark.parametrize("hangs_s", [0.0, 1000.0])
    def test_and_not_for_ever(self, hangs_s: float) -> None:
        async def story() -> float:
            harness = WorkerHarness()
            harness.gate.away, harness.gate.hangs_s = True, hangs_s
            with pytest.raises(StoreUnavailable, match="60 s"):
                await harness.agent.join()
            return harness.clock.now() - START

        assert SETTINGS.join_s / 2 < run(story()) <= SETTINGS.join_s + SETTINGS.answer_s


class TestOffers:
    """Attempts that the log holds for this worker, and that it does not have."""

    def test_one_that_is_not_begun_in_time_is_returned_once_and_never_begins(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                await asyncio.sleep(3)
                harness.gate.offer("late")
                offered_at = harness.clock.now()
                while not harness.gate.returned:
                    await asyncio.sleep(0.05)
                assert harness.gate.returned == [Return("late", 1, "not_begun", "w")]
                took_s = harness.clock.now() - offered_at
                assert OFFER_S <= took_s <= OFFER_S + HEARTBEAT_S + SETTINGS.watch_s + 0.1
                reply = await harness.call(order("late")).finished()
                assert (reply.status, reply.json()["code"]) == (409, "seen_already")
                await asyncio.sleep(5)
                assert not harness.engine.requests

        run(story())

    def test_one_that_begins_in_time_runs(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                harness.gate.offer("i")
                await asyncio.sleep(OFFER_S - 0.2)
                lines = await harness.start(order())
                await asyncio.sleep(5)
                assert json.loads(lines[-1])["event"] == "finished"
                assert not harness.gate.returned

        run(story())

    def test_what_an_earlier_process_of_this_worker_may_have_begun_is_lost(self) -> None:
        """Its caller is not to blame: its process is not suspended."""

        async def story() -> list[Return]:
            harness = WorkerHarness()
            harness.gate.offer("old")
            async with serving(harness):
                await asyncio.sleep(OFFER_S + HEARTBEAT_S)
                return harness.gate.returned

        assert run(story()) == [Return("old", 1, "lost", "w")]

    def test_an_attempt_that_began_and_got_lost_here_does_not_keep_its_slot(self) -> None:
        async def story() -> list[Return]:
            async with serving(WorkerHarness()) as harness:
                reading = harness.start(LONG)
                await asyncio.sleep(1)
                harness.executions._live.clear()  # as a bug would
                await asyncio.sleep(OFFER_S + 2 * HEARTBEAT_S)
                reading.cancel()
                return harness.gate.returned

        assert run(story()) == [Return("i", 1, "lost", "w")]


class TestUnknownToTheLog:
    def test_an_execution_that_the_log_does_not_hold_is_aborted_and_not_reported(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                kept, reading = harness.start(order("j", max_tokens=900, deadline_at=START + 1000)), harness.start(LONG)
                await asyncio.sleep(6)
                assert not reading.done()
                del harness.gate.held["i#1"]
                gone_at = harness.clock.now()
                lines = await reading
                took_s = harness.clock.now() - gone_at
                assert UNKNOWN_S < took_s <= UNKNOWN_S + 2 * HEARTBEAT_S + 0.2
                assert json.loads(lines[-1])["event"] == "token"
                assert json.loads((await kept)[-1])["event"] == "finished"
                assert [end.id for end in harness.gate.ended] == ["j"]

        run(story())

    def test_one_answer_without_it_is_not_enough(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                reading = harness.start(order(max_tokens=100))
                await asyncio.sleep(3)
                del harness.gate.held["i#1"]
                await asyncio.sleep(HEARTBEAT_S)
                harness.gate.offer("i")
                assert json.loads((await reading)[-1])["event"] == "finished"

        run(story())

    def test_answers_from_an_old_state_do_not_count_and_do_not_renew_the_lease(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                reading = harness.start(LONG)
                await asyncio.sleep(2)
                whole, old = harness.gate.do, harness.gate.position - 1

                async def behind(command: Command) -> Outcome:
                    answer = await whole(command)
                    return Attempts("w", old, ()) if isinstance(answer, Attempts) else answer

                harness.gate.do = behind  # type: ignore[method-assign]
                await asyncio.sleep(SETTINGS.lease_s - SETTINGS.margin_s - HEARTBEAT_S - 0.5)
                assert harness.executions.accepting
                assert harness.executions.running() == {"i#1"}
                await asyncio.sleep(HEARTBEAT_S + 1)
                assert not harness.executions.accepting
                reading.cancel()

        run(story())

    def test_it_is_not_reported_either_if_its_caller_leaves_then(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                reading = harness.start(LONG)
                await asyncio.sleep(1)
                harness.engine.token_s = 8.0
                await asyncio.sleep(0.1)
                del harness.gate.held["i#1"]
                await asyncio.sleep(UNKNOWN_S + 2 * HEARTBEAT_S)
                assert not reading.done()
                reading.cancel()
                await harness.executions.idle()
                assert not harness.gate.ended
                assert not harness.gate.over

        run(story())


class TestCutOff:
    @pytest.mark.parametrize("hangs_s", [0.0, 1.0, 43.0, 10_000.0])
    def test_it_aborts_before_its_lease_ends_however_the_gate_fails(self, hangs_s: float) -> None:
        async def story() -> None:
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

        run(story())

    def test_the_lease_counts_from_the_heartbeat_and_not_from_its_answer(self) -> None:
        async def story() -> None:
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

        run(story())

    def test_what_it_aborted_is_charged_when_the_gate_is_back_unless_it_was_given_away(self) -> None:
        async def story() -> None:
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

        run(story())

    def test_it_takes_work_again_when_a_heartbeat_is_answered(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                harness.gate.away = True
                await asyncio.sleep(30)
                assert not harness.executions.accepting
                harness.gate.away = False
                await asyncio.sleep(HEARTBEAT_S)
                assert harness.executions.accepting
                assert json.loads((await harness.start(order()))[-1])["event"] == "finished"

        run(story())

    def test_a_short_absence_costs_nothing(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                reading = harness.start(LONG)
                harness.gate.away = True
                await asyncio.sleep(SETTINGS.lease_s - SETTINGS.margin_s - HEARTBEAT_S)
                harness.gate.away = False
                assert json.loads((await reading)[-1])["event"] == "finished"

        run(story())


class TestDraining:
    def test_work_finishes_and_stays_leased_and_the_worker_is_gone_after(self) -> None:
        async def story() -> None:
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

        run(story())

    def test_unfinished_work_is_aborted_and_its_end_reported(self) -> None:
        async def story() -> float:
            async with serving(WorkerHarness()) as harness:
                reading = harness.start(LONG)
                await drained(harness)
                last = json.loads((await reading)[-1])
                assert (last["code"], last["final"]) == ("draining", True)
                assert [end.outcome for end in harness.gate.ended] == ["failed"]
                assert harness.gate.left
                return harness.clock.now() - START

        assert SETTINGS.drain_s <= run(story()) <= SETTINGS.drain_s + 1

    def test_a_hanging_engine_does_not_hold_it_longer_than_stated(self) -> None:
        """The engine does not end an aborted request, and the gate does not answer."""

        async def story() -> float:
            async with serving(WorkerHarness()) as harness:
                harness.engine.token_s = 10_000.0
                harness.start(LONG)
                await asyncio.sleep(1)
                harness.gate.away, harness.gate.hangs_s = True, 10_000.0
                await drained(harness)
                return harness.clock.now() - START - 1

        assert run(story()) <= SETTINGS.drain_s + 2 * SETTINGS.abort_s + 0.1

    def test_it_does_not_leave_while_a_report_is_missing(self) -> None:
        """The log would take its attempts for returned, and their tokens would be free."""

        async def story() -> None:
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

        run(story())

    def test_an_idle_worker_is_gone_at_once_though_the_gate_is_away(self) -> None:
        async def story() -> float:
            async with serving(WorkerHarness()) as harness:
                harness.gate.away = True
                await drained(harness)
                return harness.clock.now() - START

        assert run(story()) == 0

    def test_a_heartbeat_under_way_does_not_bring_it_back(self) -> None:
        async def story() -> None:
            async with serving(WorkerHarness()) as harness:
                harness.gate.answers_s = 1.0
                await asyncio.sleep(1.0)
                await drained(harness)
                await asyncio.sleep(5)
                assert harness.gate.left

        run(story())


def test_if_the_heartbeats_end_it_aborts_its_work_and_leaves() -> None:
    async def story() -> float:
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
        return harness.clock.now() - START

    assert 5 <= run(story()) < 6


def test_an_answer_of_another_kind_is_none() -> None:
    async def story() -> bool:
        harness = WorkerHarness()

        async def done(command: Command) -> Outcome:
            return Done()

        harness.gate.do = done  # type: ignore[method-assign]
        return await harness.agent.heartbeat()

    assert not run(story())


class TestHeldAttempts:
    def test_an_attempt_is_overdue_once(self) -> None:
        held = HeldAttempts()
        assert held.note(Attempts("w", 1, ("a#1",)), set(), set(), 0.0)
        assert held.overdue(OFFER_S - 0.01) == []
        assert held.overdue(OFFER_S) == ["a#1"]
        assert held.overdue(OFFER_S) == []

    def test_one_that_is_live_or_left_the_list_is_not(self) -> None:
        held = HeldAttempts()
        held.note(Attempts("w", 1, ("a#1", "b#1")), set(), set(), 0.0)
        held.note(Attempts("w", 2, ("a#1",)), set(), {"a#1"}, 1.0)
        assert held.overdue(9.0) == []

    def test_the_time_counts_from_the_first_answer_that_lists_it(self) -> None:
        held = HeldAttempts()
        for at in range(3):
            held.note(Attempts("w", at, ("a#1",)), set(), set(), float(at))
        assert held.overdue(2.0) == ["a#1"]

    def test_only_attempts_of_the_first_answer_are_old(self) -> None:
        held = HeldAttempts()
        held.note(Attempts("w", 1, ("a#1",)), set(), set(), 0.0)
        held.note(Attempts("w", 2, ("a#1", "b#1")), set(), set(), 1.0)
        assert held.is_old("a#1")
        assert not held.is_old("b#1")

    def test_an_answer_below_the_position_that_was_seen_changes_nothing(self) -> None:
        held = HeldAttempts()
        held.note(Attempts("w", 7, ("a#1",)), {"a#1"}, {"a#1"}, 0.0)
        assert not held.note(Attempts("w", 6, ()), {"a#1"}, {"a#1"}, 1.0)
        held.note(Attempts("w", 7, ("a#1",)), {"a#1"}, {"a#1"}, 5.0)
        assert held.unknown(5.0) == []


class TestCapacity:
    def test_the_best_stretch_that_was_full_at_both_ends(self) -> None:
        capacity = MeasuredCapacity()
        assert capacity.observe(0, 0, saturated=True) == 0
        assert capacity.observe(2, 100, saturated=True) == 50
        assert capacity.observe(4, 1000, saturated=False) == 50  # it ran dry somewhere in between
        assert capacity.observe(6, 2000, saturated=True) == 50
        assert capacity.observe(8, 2200, saturated=True) == 100

    def test_what_is_known_outlives_the_window(self) -> None:
        capacity = MeasuredCapacity(window_s=10)
        capacity.observe(0, 0, saturated=True)
        capacity.observe(2, 100, saturated=True)
        assert capacity.observe(1000, 100, saturated=False) == 50
        capacity.observe(1002, 110, saturated=True)
        assert capacity.observe(1004, 120, saturated=True) == 5  # slower now, and nothing better in the window


def test_a_heartbeat_is_the_identity_with_what_changes() -> None:
    async def story() -> Report:
        harness = WorkerHarness(ScriptedEngine())
        await harness.agent.heartbeat()
        return harness.gate.heartbeats[0]

    assert run(story()) == IDENTITY._replace(kv_use=0.5)
