"""Levels that steer announced quantiles until they cover what they promise."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import exp, sin
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.planning.coverage import EXACT_S, LIMIT, OPEN, Coverage
from dispatcher.policies.planning.wait_ratios import Quantiles

NARROW = Quantiles(0.92, 1.0, 1.1)


def play(bias: Callable[[float], float], *, last_s: float) -> tuple[float, float, list[float]]:
    """Return how often P50 and P90 cover waits of about 5 s, and the levels of P50 along the way.

    The estimate is `bias(now)` times too long. 50 requests arrive per second, each while some 250 others wait."""
    random, coverage, levels = Random(7), Coverage(), list[float]()
    covered, waiting = [0, 0], list[tuple[float, str]]()
    for number in range(round(last_s * 50.0)):
        now = number / 50.0
        while waiting and waiting[0][0] <= now:
            coverage.on_dispatched(waiting[0][1], heappop(waiting)[0])
        announced = coverage.move(NARROW, now)
        p50_s, p90_s = (5.0 * bias(now) * each for each in (announced.p50, announced.p90))
        coverage.on_announced(str(number), p50_s, p90_s, now)
        waited_s = 5.0 * exp(random.gauss(0.0, 0.07))
        heappush(waiting, (now + waited_s, str(number)))
        covered[0] += waited_s <= p50_s
        covered[1] += waited_s <= p90_s
        levels.append(coverage.p50.at)
    return covered[0] / len(levels), covered[1] / len(levels), levels


@pytest.mark.parametrize(
    "bias",
    [lambda now: 1.08, lambda now: 0.92, lambda now: 1.0 + now / 2000.0, lambda now: 1.0 + 0.08 * sin(now / 30.0)],
)
def test_estimates_that_are_wrong_or_drift_are_covered_as_promised(bias: Callable[[float], float]) -> None:
    p50, p90, _ = play(bias, last_s=100.0)
    assert 0.45 <= p50 <= 0.55
    assert 0.87 <= p90 <= 0.93


def test_the_level_does_not_swing_while_hundreds_wait() -> None:
    """A level that swung between its limits would be right in the mean too."""
    *_, levels = play(lambda now: 1.05, last_s=100.0)
    late = levels[len(levels) // 2 :]
    assert max(late) < 0.0, "the estimate is too long"
    assert max(late) - min(late) < 0.5


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 30.0)), max_size=60))
def test_the_steps_of_the_outcomes_add_up_to_the_change_of_the_level(waits: list[tuple[float, float]]) -> None:
    coverage, now, sums = Coverage(), 0.0, [0.0, 0.0]
    for number, (pause_s, waited_s) in enumerate(waits):
        now += pause_s
        coverage.on_announced(str(number), 10.0, 20.0, now)
        now += waited_s
        coverage.on_dispatched(str(number), now)
        for at, (level, bound_s) in enumerate(((coverage.p50, 10.0), (coverage.p90, 20.0))):
            is_exact = at == 0 and abs(waited_s - bound_s) <= EXACT_S
            covered = 0.5 if is_exact else float(waited_s <= bound_s + EXACT_S)
            sums[at] += level.pace / (OPEN + 1) * (level.covers - covered)
    if max(map(abs, sums)) < LIMIT - 1.0:
        assert coverage.p50.at == pytest.approx(sums[0], abs=0.01 * len(waits) / OPEN + 1e-9)
        assert coverage.p90.at == pytest.approx(sums[1], abs=0.01 * len(waits) / OPEN + 1e-9)
    assert coverage.p50.open == coverage.p90.open == len(coverage) == 0


def test_a_request_that_waits_too_long_counts_before_its_end() -> None:
    coverage = Coverage()
    coverage.on_announced("a", 10.0, 20.0, 0.0)
    assert coverage.move(NARROW, 9.9) == NARROW
    late, later = coverage.move(NARROW, 10.1), coverage.move(NARROW, 20.1)
    assert NARROW.p50 < late.p50
    assert NARROW.p90 == late.p90 < later.p90
    coverage.on_dispatched("a", 30.0)
    assert coverage.move(NARROW, 30.0) == later, "each outcome counts once"


def test_a_wait_that_ends_as_announced_moves_no_median() -> None:
    coverage = Coverage()
    coverage.on_announced("a", 10.0, 20.0, 0.0)
    coverage.on_dispatched("a", 10.0)
    assert coverage.p50.at == 0.0
    assert coverage.p90.at < 0.0


def test_a_request_that_left_has_no_outcome() -> None:
    coverage = Coverage()
    coverage.on_announced("a", 10.0, 20.0, 0.0)
    coverage.on_left("a")
    coverage.on_left("unknown")
    coverage.on_dispatched("unknown", 1.0)
    assert coverage.move(NARROW, 1e6) == NARROW
    assert (len(coverage), coverage.p50.open, coverage.p90.open) == (0, 0, 0)


def test_levels_are_limited_and_the_quantiles_stay_in_order() -> None:
    coverage = Coverage()
    for number in range(5000):
        coverage.on_announced(str(number), 10.0, 1e9, float(number))
        coverage.on_dispatched(str(number), number + 11.0)
    assert (coverage.p50.at, coverage.p90.at) == (LIMIT, -LIMIT)
    p10, p50, p90 = coverage.move(NARROW, 1e5)
    assert p10 <= p50 <= p90


def test_a_wide_estimate_moves_no_further_than_one_with_the_greatest_spread() -> None:
    """P90 of absences, without a bound on the spread, grew to ten times the longest of them."""
    coverage = Coverage()
    for number in range(500):
        coverage.on_announced(str(number), 10.0, 20.0, float(number))
        coverage.on_dispatched(str(number), number + 30.0)
    assert coverage.p90.at == LIMIT
    moved = coverage.move(Quantiles(1.0, 10.0, 200.0), 1e4)
    assert 200.0 < moved.p90 <= 200.0 * exp(0.5 * LIMIT) * 1.001
    assert 10.0 < moved.p50 <= 10.0 * exp(0.5 * LIMIT) * 1.001


def test_a_part_begins_with_the_levels_of_the_whole() -> None:
    coverage = Coverage()
    coverage.on_announced("a", 10.0, 20.0, 0.0)
    assert coverage.move(NARROW, 30.0) == Coverage.like(coverage).move(NARROW, 30.0) != NARROW
    assert len(Coverage.like(coverage)) == 0


def test_memory_is_bounded_by_what_waits() -> None:
    coverage = Coverage()
    for number in range(20_000):
        coverage.on_announced(str(number), 1e6, 2e6, float(number))
        coverage.on_left(str(number))
    assert len(coverage._due) <= 201
