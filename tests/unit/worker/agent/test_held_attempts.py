"""The attempts that the log holds for a worker, compared with those that run there."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.model.commands import Attempts, Command, Outcome, Return
from gpu_worker.service.agent import OFFER_S, UNKNOWN_S, HeldAttempts
from tests.support.worker.harness import HEARTBEAT_S, LONG, SETTINGS, WorkerHarness, order, serving
from tests.support.world.virtual_time import START

pytestmark = pytest.mark.virtual_time


class TestOffers:
    """Attempts that the log holds for this worker, and that it does not have."""

    async def test_one_that_is_not_begun_in_time_is_returned_once_and_never_begins(
        self, harness: WorkerHarness
    ) -> None:
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

    async def test_one_that_begins_in_time_runs(self, harness: WorkerHarness) -> None:
        harness.gate.offer("i")
        await asyncio.sleep(OFFER_S - 0.2)
        lines = await harness.start(order())
        await asyncio.sleep(5)
        assert json.loads(lines[-1])["event"] == "finished"
        assert not harness.gate.returned

    async def test_what_an_earlier_process_of_this_worker_may_have_begun_is_lost(self) -> None:
        """Its caller is not to blame: its process is not suspended."""
        harness = WorkerHarness()
        harness.gate.offer("old")
        async with serving(harness):
            await asyncio.sleep(OFFER_S + HEARTBEAT_S)
            assert harness.gate.returned == [Return("old", 1, "lost", "w")]

    async def test_an_attempt_that_began_and_got_lost_here_does_not_keep_its_slot(self, harness: WorkerHarness) -> None:
        reading = harness.start(LONG)
        await asyncio.sleep(1)
        harness.executions._live.clear()  # as a bug would
        await asyncio.sleep(OFFER_S + 2 * HEARTBEAT_S)
        reading.cancel()
        assert harness.gate.returned == [Return("i", 1, "lost", "w")]


class TestUnknownToTheLog:
    async def test_an_execution_that_the_log_does_not_hold_is_aborted_and_not_reported(
        self, harness: WorkerHarness
    ) -> None:
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

    async def test_one_answer_without_it_is_not_enough(self, harness: WorkerHarness) -> None:
        reading = harness.start(order(max_tokens=100))
        await asyncio.sleep(3)
        del harness.gate.held["i#1"]
        await asyncio.sleep(HEARTBEAT_S)
        harness.gate.offer("i")
        assert json.loads((await reading)[-1])["event"] == "finished"

    async def test_answers_from_an_old_state_do_not_count_and_do_not_renew_the_lease(
        self, harness: WorkerHarness
    ) -> None:
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


def test_an_attempt_is_overdue_once() -> None:
    held = HeldAttempts()
    assert held.note(Attempts("w", 1, ("a#1",)), set(), set(), 0.0)
    assert held.overdue(OFFER_S - 0.01) == []
    assert held.overdue(OFFER_S) == ["a#1"]
    assert held.overdue(OFFER_S) == []


def test_one_that_is_live_or_left_the_list_is_not() -> None:
    held = HeldAttempts()
    held.note(Attempts("w", 1, ("a#1", "b#1")), set(), set(), 0.0)
    held.note(Attempts("w", 2, ("a#1",)), set(), {"a#1"}, 1.0)
    assert held.overdue(9.0) == []
