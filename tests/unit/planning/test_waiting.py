"""P50 and P90 of a waiting time."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.lengths import Lengths
from dispatcher.policies.planning.waiting import Ahead, Backlog, Batch, WaitingTimes, expected_wait_s

FULL = Batch(rest=1000.0, kept=1000.0)


def test_a_full_batch_adds_nothing() -> None:
    assert expected_wait_s(Ahead(500.0), FULL, 100.0) == 5.0


def test_a_queue_that_fits_the_empty_batch_does_not_wait() -> None:
    assert expected_wait_s(Ahead(900.0), Batch(0.0, 1000.0), 100.0) == 0.0
    assert expected_wait_s(Ahead(1500.0), Batch(0.0, 1000.0), 100.0) == 5.0


def test_a_batch_of_long_rests_waits_longer() -> None:
    assert expected_wait_s(Ahead(500.0), Batch(1300.0, 1000.0), 100.0) == 8.0


def test_a_batch_with_room_admits_at_once() -> None:
    assert expected_wait_s(Ahead(), Batch(1300.0, 1000.0, has_room=True), 100.0) == 0.0


@pytest.mark.parametrize("capacity", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_without_a_measured_throughput_there_is_no_wait(capacity: float | None) -> None:
    assert expected_wait_s(Ahead(500.0), FULL, capacity) is None


def test_no_waiting_time_is_announced_without_throughput() -> None:
    times = WaitingTimes()
    assert times.announce("a", 0.0, None, Ahead(), capacity_per_s=100.0, kept=1.0) is None
    assert times.announce("a", 0.0, 1.0, Ahead(), capacity_per_s=None, kept=1.0) is None


def test_no_waiting_time_is_announced_for_a_model_that_is_never_loaded() -> None:
    times = WaitingTimes()
    assert times.announce("a", 0.0, 1.0, Ahead(), capacity_per_s=1.0, kept=0.0, until_loaded_s=float("inf")) is None


def test_a_guarantee_serves_at_the_greater_rate() -> None:
    def wait(guaranteed: float) -> float | None:
        return expected_wait_s(Ahead(5000.0), FULL, 100.0, own=Ahead(400.0), guaranteed_per_s=guaranteed)

    assert wait(0.0) == 50.0, "no guarantee"
    assert wait(4.0) == 50.0, "less than the share"
    assert wait(40.0) == 10.0
    assert wait(1e9) == 4.0, "never faster than the whole capacity"


def test_backlog_uses_the_lengths_of_the_moment() -> None:
    backlog = Backlog()
    for tokens in (100, 50):
        backlog.arrived(tokens)
    assert backlog.ahead(Lengths(200, 10)) == Ahead(150 + 2 * 2 * 200, 2 * (2 * 10) ** 2)
    backlog.left(100)
    assert backlog.ahead(Lengths(10, 0)) == Ahead(50 + 2 * 10, 0)


def test_a_request_that_never_arrived_cannot_leave() -> None:
    with pytest.raises(ValueError, match="no request"):
        Backlog().left(1)
    with pytest.raises(ValueError, match="no request"):
        Backlog(1, 5).left(6)


def test_p90_has_the_prior_ratio_and_the_spread_of_the_queue() -> None:
    found = WaitingTimes().announce("a", 0.0, 10.0, Ahead(1000.0, 100.0**2), capacity_per_s=100.0, kept=0.0)
    assert found is not None
    assert found.p50_s == 10.0
    assert found.p90_s == pytest.approx(1.5 * 10.0 + 1.28)


def test_loading_the_model_is_added_and_not_scaled() -> None:
    times = WaitingTimes()
    found = times.announce("a", 0.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0, until_loaded_s=30.0)
    assert found is not None
    assert (found.p50_s, found.p90_s) == (40.0, 45.0)
    times.dispatched("a", 40.0)
    for number in range(20):
        times.announce(str(number), 0.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0, until_loaded_s=30.0)
        times.dispatched(str(number), 40.0)
    later = times.announce("b", 0.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0)
    assert later is not None
    assert later.p90_s == pytest.approx(11.0), "the queue's part was as predicted"


def test_short_waits_do_not_widen_long_ones() -> None:
    times, kept = WaitingTimes(), 1000.0
    for number in range(100):
        wait_s = 1.0 if number % 2 else 100.0
        times.announce(str(number), 0.0, wait_s, Ahead(), capacity_per_s=100.0, kept=kept)
        times.dispatched(str(number), 4.0 if number % 2 else 100.0)
    short = times.announce("s", 200.0, 1.0, Ahead(), capacity_per_s=100.0, kept=kept)
    long = times.announce("l", 200.0, 100.0, Ahead(), capacity_per_s=100.0, kept=kept)
    assert short is not None
    assert long is not None
    assert short.p90_s == pytest.approx(4.0)
    assert long.p90_s == pytest.approx(110.0)


def test_a_hanging_engine_is_noticed_before_any_dispatch() -> None:
    times = WaitingTimes()
    for number in range(50):
        times.announce(str(number), 0.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0)
    found = times.announce("late", 35.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0)
    assert found is not None
    assert found.p90_s >= 35.0


def test_a_request_that_left_teaches_nothing() -> None:
    times = WaitingTimes()
    times.announce("a", 0.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0)
    times.left("a")
    found = times.announce("b", 1000.0, 10.0, Ahead(), capacity_per_s=100.0, kept=0.0)
    assert found is not None
    assert found.p90_s == 15.0


@pytest.mark.parametrize("until_loaded_s", [-1.0, float("nan")])
def test_impossible_times_are_refused(until_loaded_s: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        WaitingTimes().announce("a", 0.0, 1.0, Ahead(), capacity_per_s=1.0, kept=0.0, until_loaded_s=until_loaded_s)


def test_a_negative_service_is_refused() -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        Ahead(-1.0)
