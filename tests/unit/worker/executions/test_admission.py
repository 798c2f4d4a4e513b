"""Which orders a worker begins: each attempt once, at most one per slot."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import Done, End, Return
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken
from gpu_worker.service.executions.execution import Abort
from gpu_worker.service.executions.executions import ALIVE, KEEP_S, RETURN_S, SKEW_S, TOKEN_S, Refusal, SeenAttempts
from gpu_worker.service.executions.outbox import PENDING_MAX
from tests.support.duration import at_depth
from tests.support.worker.harness import SLOTS, WorkerHarness, order
from tests.support.world.virtual_time import START, LoopClock, run

pytestmark = pytest.mark.virtual_time


async def test_an_order_is_valid_once() -> None:
    harness = WorkerHarness()
    await harness.start(order())
    with pytest.raises(Refusal) as refused:
        harness.lines(order())
    assert (refused.value.status, refused.value.code) == (409, "seen_already")
    await harness.start(order(attempt=2))
    with pytest.raises(Refusal):
        harness.lines(order(attempt=1))
    assert len(harness.engine.requests) == 2


async def test_an_order_signed_for_an_earlier_process_of_the_worker_is_refused() -> None:
    harness = WorkerHarness()
    token = harness.token(order())
    await asyncio.sleep(10)
    harness.executions._seen.started_at = harness.clock.now()
    with pytest.raises(Refusal, match="before this worker was started"):
        harness.executions.run(token, order())
    await harness.start(order())


@pytest.mark.parametrize(
    ("change", "code"),
    [({"accepting": False}, "draining"), ({"engine_serves": lambda: False}, "draining"), ({"slots": 0}, "worker_full")],
)
async def test_an_attempt_that_cannot_begin_is_returned_before_the_caller_learns_it(
    change: dict[str, Any], code: str
) -> None:
    harness = WorkerHarness()
    for name, value in change.items():
        setattr(harness.executions, name, value)
    harness.gate.answers_s = 3.0
    lines = await harness.start(order())
    assert harness.gate.returned == [Return("i", 1, "refused", "w")]
    assert lines[0] == ALIVE
    last = json.loads(lines[-1])
    assert (last["code"], last["status"], last["final"]) == (code, 503, False)
    assert not harness.engine.requests


async def test_the_caller_of_a_returned_attempt_does_not_wait_for_the_log_for_ever() -> None:
    harness = WorkerHarness()
    harness.executions.accepting = False
    harness.gate.away = True
    assert set(await harness.start(order())) == {ALIVE}
    assert harness.clock.now() - START == RETURN_S


async def test_a_worker_with_too_many_reports_under_way_takes_nothing() -> None:
    harness = WorkerHarness()
    harness.outbox._deliveries = dict.fromkeys(map(str, range(PENDING_MAX)))  # type: ignore[assignment]
    with pytest.raises(Refusal, match="too many reports"):
        harness.lines(order())


async def test_a_fenced_attempt_does_not_begin() -> None:
    harness = WorkerHarness()
    harness.gate.offer("i")
    harness.executions.fence("i#1", is_old=False)
    with pytest.raises(Refusal):
        harness.executions.run(harness.token(order()), order())
    await harness.executions.idle()
    assert harness.gate.returned == [Return("i", 1, "not_begun", "w")]
    assert harness.gate.over["i#1"] == Done()
    assert harness.executions.fenced == {"not_begun": 1}


async def test_an_attempt_that_runs_is_not_fenced() -> None:
    harness = WorkerHarness()
    reading = harness.start(order())
    harness.executions.fence("i#1", is_old=False)
    assert json.loads((await reading)[-1])["event"] == "finished"
    assert not harness.gate.returned


Step = tuple[str, int, float]


@given(
    st.lists(
        st.tuples(st.sampled_from(["order", "leave", "abort", "away", "back"]), st.integers(0, 9), st.floats(0, 2)),
        max_size=25,
    )
)
@settings(deadline=None, max_examples=at_depth(50, 150))
def test_slots_are_never_exceeded_and_each_attempt_is_reported_once(steps: list[Step]) -> None:
    async def story() -> None:
        harness = WorkerHarness()
        most, reading = 0, dict[int, asyncio.Future[list[bytes]]]()
        attempts = 0
        for action, number, pause_s in steps:
            if action == "order":
                attempts += 1
                work = order(f"c{attempts}", max_tokens=1 + number, deadline_at=harness.clock.now() + 1 + number)
                reading[attempts] = harness.start(work)
            elif action == "leave" and number in reading:
                reading[number].cancel()
            elif action == "abort":
                await harness.executions.abort(f"c{number}#1", Abort.CUT_OFF)
            elif action in ("away", "back"):
                harness.gate.away = action == "away"
            await asyncio.sleep(pause_s)
            most = max(most, len(harness.engine.running), len(harness.executions.running()))
        harness.gate.away = False
        await harness.executions.idle()
        await asyncio.gather(*reading.values(), return_exceptions=True)
        assert most <= SLOTS
        reports: list[End | Return] = [*harness.gate.ended, *harness.gate.returned]
        reported = [(report.id, report.attempt) for report in reports]
        assert sorted(reported) == sorted((f"c{number}", 1) for number in range(1, attempts + 1))
        assert sum(end.output_tokens for end in harness.gate.ended) <= harness.engine.generated
        assert not harness.gate.held

    run(story())


class Clock(LoopClock):
    at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def test_an_attempt_is_taken_once_and_no_older_one_after_it() -> None:
    seen = SeenAttempts(Clock())
    assert [seen.take("i", attempt) for attempt in (2, 2, 1, 3, 2)] == [True, False, False, True, False]
    assert seen.take("j", 1)
    assert seen.has("i", 1)
    assert not seen.has("i", 4)


def test_it_is_remembered_for_the_life_of_a_call_and_not_longer() -> None:
    seen = SeenAttempts(clock := Clock())
    seen.take("i", 1)
    clock.at = KEEP_S - 1
    assert not seen.take("i", 1)
    clock.at = KEEP_S + 1
    assert seen.take("j", 1)
    assert len(seen) == 1


def test_of_too_many_the_oldest_are_forgotten_but_none_with_a_valid_token() -> None:
    seen = SeenAttempts(clock := Clock(), seen_max=10)
    for number in range(30):
        clock.at = number * TOKEN_S / 20
        assert seen.take(f"i-{number}", 1)
    assert len(seen) <= 20 + 1
    assert not seen.take("i-29", 1)
    assert not seen.has("i-0", 1)
    assert TOKEN_S > EXECUTION_TOKEN_TTL_S


@pytest.mark.parametrize(("signed_at", "stale"), [(90.0, True), (100.0 - SKEW_S - 0.1, True), (99.0, False)])
def test_a_token_from_before_the_start_is_stale(signed_at: float, stale: bool) -> None:
    token = ExecutionToken("w", "i", 1, signed_at + EXECUTION_TOKEN_TTL_S, "")
    assert SeenAttempts(Clock(), started_at=100.0).is_stale(token) == stale
