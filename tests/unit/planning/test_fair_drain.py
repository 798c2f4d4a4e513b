"""Service of other queues before a request, under a fair order."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.fair_drain import FORECAST_S, ArrivalRate, Rival, service_of_rivals

ENDLESS = 1e9


def test_alone_nothing_is_ahead() -> None:
    assert service_of_rivals(100, 0, 1, [], 10) == 0


def test_endless_queues_get_as_much_per_weight() -> None:
    assert service_of_rivals(100, 50, 1, [Rival(ENDLESS), Rival(ENDLESS, weight=3)], 10) == 400


def test_a_short_queue_leaves_its_part_to_the_others() -> None:
    assert service_of_rivals(100, 50, 1, [Rival(20), Rival(ENDLESS)], 10) == 120


def test_forecast_arrivals_are_served_first_up_to_the_same_level() -> None:
    # 100 of its own at 10 a second less 4 a second of the other: 100 = (10 - 4) T.
    assert service_of_rivals(100, 100, 1, [Rival(0, arriving_per_s=4)], 10) == pytest.approx(4 * 100 / 6)
    assert service_of_rivals(100, 100, 1, [Rival(0, arriving_per_s=40)], 10) == 100


def test_arrivals_are_forecast_for_the_horizon_only() -> None:
    before = 10 * FORECAST_S * 10
    assert service_of_rivals(before, before, 1, [Rival(0, arriving_per_s=1)], 10) == FORECAST_S


def test_with_room_to_spare_only_what_waits_is_ahead() -> None:
    assert service_of_rivals(100, -1000, 1, [Rival(30, arriving_per_s=50)], 10) == 30


@pytest.mark.parametrize(("weight", "capacity"), [(0, 1), (-1, 1), (1, 0), (1, float("inf")), (float("nan"), 1)])
def test_impossible_weights_and_capacities_are_refused(weight: float, capacity: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        service_of_rivals(1, 1, weight, [], capacity)


@pytest.mark.parametrize("rival", [(-1.0, 0.0, 1.0), (1.0, -1.0, 1.0), (1.0, 0.0, 0.0), (float("inf"), 0.0, 1.0)])
def test_impossible_queues_are_refused(rival: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="positive weight"):
        Rival(*rival)


def test_the_arrival_rate_follows_the_last_minutes() -> None:
    rate = ArrivalRate()
    assert rate.per_s(0.0) == 0
    for second in range(1000):
        rate.arrived(7.0, float(second))
    assert rate.per_s(999.0) == pytest.approx(7, rel=0.01)
    assert rate.per_s(999.0 + 10 * FORECAST_S) < 0.01
    assert rate.per_s(500.0) == rate.per_s(999.0), "an earlier time counts as the latest"
