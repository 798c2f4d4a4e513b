"""Quantiles of actual over predicted waits, with requests that still wait."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.wait_ratios import (
    DISPATCHES,
    PRIOR_OBSERVATIONS,
    RATIO_MAX,
    RATIO_MIN,
    Quantiles,
    WaitRatios,
)


def after(ratios: list[float]) -> WaitRatios:
    """A sample of dispatches with these ratios, of predictions of 10 s, one every 10 s until the time 0."""
    sample = WaitRatios()
    for number, ratio in enumerate(ratios, 1):
        since = 10.0 * (number - len(ratios))
        sample.predicted(str(number), 10.0, since)
        sample.on_dispatched(str(number), since + 10.0 * ratio)
    return sample


def own(sample: WaitRatios, now: float) -> Quantiles:
    """Its quantiles without a prior, moved on to `now`."""
    return sample.quantiles(now).own


def test_without_observations_there_is_the_prior() -> None:
    assert WaitRatios().quantiles(0.0).with_prior(Quantiles(0.2, 0.3, 3.0)) == (0.2, 0.3, 3.0)


def test_the_quantiles_are_those_of_the_ratios() -> None:
    p10, p50, p90 = own(after([0.3] * 12 + [1.0] * 73 + [2.0] * 10 + [3.9] * 5), 100.0)
    assert 0.3 / 1.11 <= p10 <= 0.3
    assert p50 == pytest.approx(1.0)
    assert 2.0 <= p90 <= 2.0 * 1.11


def test_the_prior_fades_with_observations() -> None:
    prior = Quantiles(0.5, 1.0, 2.0)
    few, many = (after([0.5] * count).quantiles(100.0).with_prior(prior) for count in (4, DISPATCHES))
    assert 0.5 < many.p50 < few.p50 < prior.p50
    assert many.p50 == pytest.approx(0.5, rel=0.08)
    half = after([0.5] * round(PRIOR_OBSERVATIONS)).quantiles(100.0).with_prior(prior)
    assert half.p50 == pytest.approx((0.5 * 1.0) ** 0.5)


def test_waits_at_the_same_time_are_one_observation() -> None:
    sample, prior = WaitRatios(), Quantiles(0.5, 1.0, 2.0)
    for number in range(101):
        sample.predicted(str(number), 10.0, 0.001 * number)
    assert sample.quantiles(25.0).weight == pytest.approx(1.01 / (1.01 + PRIOR_OBSERVATIONS)), "all are overdue"
    for number in range(101):
        sample.on_dispatched(str(number), 30.0)
    found = sample.quantiles(30.0)
    assert found.weight == pytest.approx(1.01 / (1.01 + PRIOR_OBSERVATIONS))
    assert found.own.p50 == pytest.approx(3.0, rel=0.02)
    assert found.with_prior(prior).p50 < 1.2


def test_the_quantiles_are_bounded() -> None:
    assert own(after([0.001] * 50), 100.0).p50 <= RATIO_MIN
    longest = own(after([1000.0] * 50), 1e5)
    assert longest.p10 == pytest.approx(RATIO_MAX / 1.11, rel=0.01)
    assert (longest.p50, longest.p90) == (RATIO_MAX, RATIO_MAX)


def test_only_the_last_dispatches_count() -> None:
    sample = after([4.0] * DISPATCHES + [1.0] * DISPATCHES)
    assert len(sample) == DISPATCHES
    assert own(sample, 100.0).p50 == pytest.approx(1.0)


def test_requests_that_wait_count_before_their_dispatch() -> None:
    sample = after([1.0] * 100)
    for number in range(100):
        sample.predicted(f"late {number}", 10.0, 0.0)
    assert own(sample, 10.0).p90 <= 1.11, "each may still end as predicted"
    assert len(sample) == 100, "none waits longer than predicted"
    assert own(sample, 30.1).p90 >= 3.0, "half of the requests wait for three times the prediction"
    assert len(sample) == 200
    assert own(sample, 1e9).p90 == RATIO_MAX


def test_early_dispatches_alone_do_not_make_the_waits_short() -> None:
    sample = WaitRatios()
    for number in range(20):
        sample.predicted(str(number), 10.0, 0.0)
    for number in range(5):
        sample.on_dispatched(str(number), 2.0)
    assert own(sample, 8.0).p50 >= 0.7, "15 of 20 wait for 8 s already; of those that ended all have waited 2 s"


def test_a_censored_observation_becomes_a_final_one() -> None:
    sample = WaitRatios()
    sample.predicted("a", 10.0, 0.0)
    sample.quantiles(25.0)
    sample.on_dispatched("a", 30.0)
    assert (len(sample), sample.waiting) == (1, 0)
    assert own(sample, 1e9).p50 == pytest.approx(3.0)


def test_a_request_that_left_is_forgotten() -> None:
    sample = WaitRatios()
    sample.predicted("a", 10.0, 0.0)
    sample.quantiles(25.0)
    sample.on_left("a")
    sample.on_left("unknown")
    sample.on_dispatched("unknown", 1.0)
    assert len(sample) == 0
    assert sample.quantiles(1e9).weight == 0.0


@pytest.mark.parametrize("predicted_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wait_without_a_ratio_is_not_followed(predicted_s: float) -> None:
    sample = WaitRatios()
    sample.predicted("a", predicted_s, 0.0)
    assert sample.waiting == 0


def test_memory_is_bounded_by_what_waits() -> None:
    sample = WaitRatios()
    for number in range(20_000):
        sample.predicted(str(number), 1e6, float(number))
        sample.on_left(str(number))
    assert len(sample._moves) <= DISPATCHES + 1
