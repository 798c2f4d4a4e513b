"""The rate of a full batch, extrapolated from batches that were not full."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.policies.expected_capacity import (
    INTERVAL_S,
    MEMORY,
    RATIOS,
    SECONDS_MAX,
    SERVICE_MAX,
    SILENT_S,
    ExpectedCapacity,
    FillTimes,
    SettledService,
)

BASE_S, EACH_S = 0.0308, 0.00055
"""A step of the published runs of an A10G."""


def rate_per_s(running: int, base_s: float = BASE_S, each_s: float = EACH_S) -> float:
    """Return the service of so many requests in a second, 2 for each token."""
    return 2 * running / (base_s + each_s * running)


def after(*running: int, seconds: float = 1.0, base_s: float = BASE_S, each_s: float = EACH_S) -> ExpectedCapacity:
    """Return what is expected after intervals with these numbers of requests."""
    capacity = ExpectedCapacity()
    for each in running:
        capacity.observe({each: seconds}, rate_per_s(each, base_s, each_s) * seconds)
    return capacity


def test_nothing_is_expected_of_a_worker_that_served_nothing() -> None:
    assert ExpectedCapacity().service_per_s(8) == 0.0
    assert after(1, 2).service_per_s(0) == 0.0


@pytest.mark.parametrize(("base_s", "each_s"), [(BASE_S, EACH_S), (0.012, 0.0018), (0.01, 0.0001)])
def test_part_full_batches_of_several_sizes_tell_the_rate_of_a_full_one(base_s: float, each_s: float) -> None:
    found = after(*[1, 3, 6, 10] * 15, base_s=base_s, each_s=each_s).service_per_s(32)
    assert found == pytest.approx(rate_per_s(32, base_s, each_s), rel=0.25)


def test_one_size_is_extrapolated_by_the_prior() -> None:
    """Between a rate that grows with the slots, and one that does not grow at all."""
    capacity = after(*[4] * 60)
    assert capacity.service_per_s(4) == pytest.approx(rate_per_s(4))
    assert rate_per_s(4) < capacity.service_per_s(32) < 8 * rate_per_s(4)
    assert capacity.service_per_s(32) == pytest.approx(rate_per_s(32), rel=0.5)


def test_an_interval_with_several_sizes_counts_each_for_its_time() -> None:
    """Two equal times with 1 and with 9 requests are no time with 5: alone, a request gets more of a step."""
    mixed, mean = ExpectedCapacity(), ExpectedCapacity()
    service = rate_per_s(1) + rate_per_s(9)
    for _ in range(20):
        mixed.observe({1: 1.0, 9: 1.0}, service)
        mean.observe({5: 2.0}, service)
    assert mixed.service_per_s(5) > 1.01 * mean.service_per_s(5) == pytest.approx(1.01 * service / 2)


def test_short_intervals_are_put_together() -> None:
    capacity = ExpectedCapacity()
    capacity.observe({1: INTERVAL_S / 4}, 10.0)
    assert capacity.service_per_s(8) == 0.0
    for _ in range(3):
        capacity.observe({1: INTERVAL_S / 4}, 10.0)
    assert capacity.service_per_s(1) == pytest.approx(40.0 / INTERVAL_S)


def test_a_decode_step_counts_until_real_requests_have_run() -> None:
    capacity = ExpectedCapacity()
    capacity.observe_step(0.03, 2.0)
    assert capacity.service_per_s(1) == pytest.approx(2.0 / 0.03)
    for _ in range(3):
        capacity.observe({2: 1.0}, 500.0)
    assert capacity.service_per_s(2) == pytest.approx(500.0, rel=0.1)


def test_another_rate_is_learned_within_its_memory() -> None:
    capacity = after(*[1, 3, 6] * MEMORY)
    for _ in range(MEMORY):
        for running in (1, 3, 6):
            capacity.observe({running: 1.0}, rate_per_s(running) / 3)
    assert capacity.service_per_s(6) == pytest.approx(rate_per_s(6) / 3, rel=0.15)


def test_an_engine_that_hangs_changes_nothing() -> None:
    hung, usual = after(2, 4, 8), after(2, 4, 8)
    for _ in range(2 * int(SILENT_S)):
        hung.observe({4: 1.0}, 0.0)
    for capacity in (hung, usual):
        capacity.observe({4: 1.0}, rate_per_s(4))
    assert hung.service_per_s(16) == pytest.approx(usual.service_per_s(16), rel=0.01)


@pytest.mark.parametrize(
    ("times_s", "service"),
    [
        ({1: nan}, 1.0), ({1: inf}, 1.0), ({1: -1.0}, 1.0), ({0: 5.0}, 1.0), ({-3: 5.0}, 1.0),
        ({1: 2 * SECONDS_MAX}, 1.0), ({1: 5.0}, nan), ({1: 5.0}, inf), ({1: 5.0}, -1.0), ({1: 5.0}, 2 * SERVICE_MAX),
    ],
)  # fmt: skip
def test_impossible_intervals_are_left_out(times_s: dict[int, float], service: float) -> None:
    capacity, usual = after(2, 4), after(2, 4)
    capacity.observe(times_s, service)
    assert capacity.service_per_s(16) == usual.service_per_s(16)


@pytest.mark.parametrize("seconds", [0.0, -1.0, nan, inf, 1e300])
def test_an_impossible_step_is_left_out(seconds: float) -> None:
    capacity = ExpectedCapacity()
    capacity.observe_step(seconds, 2.0)
    assert capacity.service_per_s(8) == 0.0


intervals = st.tuples(
    st.dictionaries(st.integers(-1, 2000), st.floats(-1, 2 * SECONDS_MAX), max_size=4),
    st.floats(-1, 2 * SERVICE_MAX),
)


@given(st.lists(intervals, max_size=30), st.integers(1, 1024))
def test_any_history_has_a_finite_rate_that_does_not_fall_with_the_slots(
    history: list[tuple[dict[int, float], float]], slots: int
) -> None:
    capacity = ExpectedCapacity()
    for times_s, service in history:
        capacity.observe(times_s, service)
    fewer, more = capacity.service_per_s(slots), capacity.service_per_s(2 * slots)
    assert 0 <= fewer <= more * (1 + 1e-9) < inf
    assert more <= 2 * fewer * (1 + 1e-9), "a batch of twice the size brings at most twice as much"


def test_its_memory_is_bounded() -> None:
    capacity = after(*range(1, 1000))
    assert len(capacity._products) == len(capacity._models) == len(RATIOS)
    assert not capacity._times_s


def test_fill_times_are_those_with_requests() -> None:
    fills = FillTimes()
    fills.set_running(1, 10.0)
    fills.set_running(2, 11.5)
    fills.set_running(0, 12.0)
    fills.set_running(2, 20.0)
    assert fills.take(21.0) == {1: 1.5, 2: 1.5}
    assert fills.take(21.25) == {2: 0.25}
    fills.set_running(0, 21.0)
    assert fills.take(30.0) == {}, "a clock that goes back adds nothing"


def test_a_prompt_counts_when_its_request_has_ended() -> None:
    settled = SettledService()
    assert settled.take(100.0, 90.0) == 10.0
    assert settled.take(120.0, 90.0) == 20.0
    assert settled.take(125.0, 0.0) == 95.0
    assert settled.take(130.0, 80.0) == 0.0, "nothing is taken back"
    assert settled.take(220.0, 80.0) == 15.0
