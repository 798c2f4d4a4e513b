"""Attempts that may not begin again, within bounds of time and number."""

from __future__ import annotations

import pytest

from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken
from gpu_worker.service.executions.executions import KEEP_S, SKEW_S, TOKEN_S, SeenAttempts
from tests.support.world.virtual_time import LoopClock


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
