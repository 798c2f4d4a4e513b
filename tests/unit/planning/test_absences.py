"""The rest of a model's absence, from the lengths of earlier ones."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from dispatcher.policies.planning.absences import absence_rest
from dispatcher.policies.waiting import STEP_DOUBLED_AT, drain_s


def test_without_an_absence_the_soonest_time_is_multiplied() -> None:
    rest = absence_rest((), (), 0.0, 10.0)
    assert 0 < rest.p10 < 10.0 < rest.p50 < 15.0 < rest.p90
    twice = absence_rest((), (), 0.0, 20.0)
    assert twice == pytest.approx([2 * each for each in rest])


def test_the_rest_is_that_of_absences_that_were_longer() -> None:
    lengths = [10.0] * 6 + [40.0] * 6
    before, later = absence_rest(lengths, lengths, 0.0, 1.0), absence_rest(lengths, lengths, 20.0, 1.0)
    assert before.p90 == pytest.approx(40.0, rel=0.1)
    assert later.p50 == pytest.approx(20.0, rel=0.1), "those of 10 s are over"


def test_absences_of_other_models_count_less() -> None:
    own, others = [10.0] * 5, [50.0] * 5
    assert absence_rest(own, others, 0.0, 10.0).p50 <= 10.0 < absence_rest((), others, 0.0, 10.0).p50


def test_an_absence_that_lasts_longer_than_all_others_is_expected_to_last_as_long_again() -> None:
    rests = [absence_rest([5.0] * 12, [5.0] * 12, elapsed_s, 1.0).p50 for elapsed_s in (10.0, 100.0, 1000.0)]
    assert rests[1] == pytest.approx(10 * rests[0])
    assert rests[2] == pytest.approx(10 * rests[1])


def test_the_quantiles_cover_calls_that_arrive_at_any_time_of_an_absence() -> None:
    """Absences are exponential with a mean of 20 s, so long ones have more calls than short ones."""
    random = Random("absences")
    last: list[float] = []
    within_p50, within_p90 = list[bool](), list[bool]()
    for _ in range(600):
        length = random.expovariate(1 / 20.0)
        elapsed_s = 0.0
        while elapsed_s < length:
            rest = absence_rest(last, last, elapsed_s, 10.0)
            within_p50.append(length - elapsed_s <= rest.p50)
            within_p90.append(length - elapsed_s <= rest.p90)
            elapsed_s += 1.0
        last = [*last, length][-12:]
    assert 0.4 <= fmean(within_p50) <= 0.6
    assert 0.85 <= fmean(within_p90) <= 0.97


def emptied_s(steps: list[float]) -> float:
    """Return the seconds until requests of so many steps have ended. The rest of one in the full batch is a step of all
    of them, and a step is shorter with fewer."""
    running, done, now = len(steps), 0.0, 0.0
    for count, step in zip(range(running, 0, -1), sorted(steps), strict=True):
        now += (step - done) * (1 + count / STEP_DOUBLED_AT) / (1 + running / STEP_DOUBLED_AT)
        done = step
    return now


def test_a_drain_takes_as_long_as_the_longest_of_the_running_calls_with_steps_that_get_shorter() -> None:
    random = Random("drains")
    assert drain_s(0, 5.0) == 0.0
    assert drain_s(1, 5.0) == 5.0
    for running in (4, 32, 256):
        longest = fmean(emptied_s([random.expovariate(0.2) for _ in range(running)]) for _ in range(2000))
        assert drain_s(running, 5.0) == pytest.approx(longest, rel=0.2)
