"""The 0.9 quantile of actual over predicted waits, with requests that still wait."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.wait_ratios import DISPATCHES, PRIOR_RATIO, RATIO_MAX, RATIO_MIN, WaitRatios


def after(ratios: list[float]) -> WaitRatios:
    """A sample of dispatches with these ratios, of predictions of 10 s."""
    sample = WaitRatios()
    for number, ratio in enumerate(ratios):
        sample.predicted(str(number), 10.0, 0.0)
        sample.on_dispatched(str(number), 10.0 * ratio)
    return sample


def test_without_observations_there_is_a_prior() -> None:
    assert WaitRatios().quantile(0.0) == PRIOR_RATIO


def test_the_quantile_is_at_most_five_percent_too_high() -> None:
    quantile = after([1.0] * 85 + [2.0] * 10 + [3.9] * 5).quantile(100.0)
    assert 2.0 <= quantile <= 2.0 * 1.05


def test_the_quantile_is_bounded() -> None:
    assert after([0.1] * 50).quantile(100.0) == RATIO_MIN
    assert after([1000.0] * 50).quantile(1e5) == RATIO_MAX


def test_only_the_last_dispatches_count() -> None:
    sample = after([4.0] * DISPATCHES + [1.0] * DISPATCHES)
    assert len(sample) == DISPATCHES
    assert sample.quantile(100.0) == RATIO_MIN


def test_requests_that_wait_longer_than_predicted_count_before_their_dispatch() -> None:
    sample = after([1.0] * 100)
    for number in range(100):
        sample.predicted(f"late {number}", 10.0, 0.0)
    assert sample.quantile(10.0) == RATIO_MIN
    assert len(sample) == 100, "none waits longer than predicted"
    assert 2.0 <= sample.quantile(20.1) <= 2.2
    assert len(sample) == 200
    assert sample.quantile(1e9) == RATIO_MAX


def test_a_censored_observation_becomes_a_final_one() -> None:
    sample = WaitRatios()
    sample.predicted("a", 10.0, 0.0)
    sample.quantile(25.0)
    sample.on_dispatched("a", 30.0)
    assert (len(sample), sample.waiting) == (1, 0)
    assert 3.0 <= sample.quantile(1e9) <= 3.15


def test_a_request_that_left_is_forgotten() -> None:
    sample = WaitRatios()
    sample.predicted("a", 10.0, 0.0)
    sample.quantile(25.0)
    sample.on_left("a")
    sample.on_left("unknown")
    sample.on_dispatched("unknown", 1.0)
    assert len(sample) == 0
    assert sample.quantile(1e9) == PRIOR_RATIO


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
