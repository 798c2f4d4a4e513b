"""Forecasts approach the true rate from below, and memory has bounds."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.history import ArrivalForecast


def test_without_history_nothing_is_expected() -> None:
    assert ArrivalForecast().service("a", 0.0, 60.0) == 0.0


def test_a_steady_rate_is_approached_from_below_and_forgotten() -> None:
    forecast, expected = ArrivalForecast(60.0), []
    for second in range(601):
        forecast.record("a", 5.0, float(second))
        expected.append(forecast.service("a", float(second), 60.0))
    assert expected == sorted(expected)
    assert 299.0 < expected[-1] < 303.0  # 5 a second in 60 s; an arrival counts at once
    assert forecast.service("a", 600.0 + 600.0, 60.0) < 0.02
    assert forecast.service("b", 600.0, 60.0) == 0.0


def test_a_burst_announces_no_more_than_itself() -> None:
    forecast = ArrivalForecast(60.0)
    for _ in range(3_500):
        forecast.record("a", 2.0, 7.0)
    assert forecast.service("a", 7.0, 60.0) == pytest.approx(7_000.0)


def test_a_clock_that_goes_back_changes_nothing() -> None:
    forecast = ArrivalForecast()
    forecast.record("a", 60.0, 100.0)
    forecast.record("a", 60.0, 40.0)
    assert forecast.service("a", 100.0, 60.0) == forecast.service("a", 30.0, 60.0) == pytest.approx(120.0)


def test_the_least_recent_tenant_is_dropped() -> None:
    forecast = ArrivalForecast(tenants_max=2)
    for tenant in ("a", "b", "a", "c"):
        forecast.record(tenant, 1.0, 0.0)
    assert len(forecast) == 2
    assert [forecast.service(tenant, 0.0, 60.0) > 0 for tenant in "abc"] == [True, False, True]


@pytest.mark.parametrize("service", [-1.0, float("nan"), float("inf")])
def test_an_impossible_service_is_refused(service: float) -> None:
    with pytest.raises(ValueError, match="zero or a positive number"):
        ArrivalForecast().record("a", service, 0.0)


def test_impossible_bounds_are_refused() -> None:
    for time_constant_s, tenants_max in ((0.0, 1), (float("nan"), 1), (float("inf"), 1), (60.0, 0)):
        with pytest.raises(ValueError, match="must be positive"):
            ArrivalForecast(time_constant_s, tenants_max)


def test_a_stream_that_ends_is_noticed_by_its_silence() -> None:
    """Of 4 requests a second, after s seconds of silence at most 3 / s are expected: 0.3 after 10 s, where a rate that
    only fades would be 3.4."""
    forecast = ArrivalForecast()
    for number in range(400):
        forecast.record("t", 1.0, 0.25 * number, 20.0)
    for silent_s, per_s in ((0.25, 4.0), (10.0, 0.3), (30.0, 0.1)):
        expected = forecast.arrivals("t", 0.25 * 399 + silent_s)
        assert expected is not None
        assert expected.requests_per_s == pytest.approx(per_s, rel=0.05)


def test_a_rare_stream_is_expected_through_its_usual_gaps() -> None:
    forecast = ArrivalForecast()
    for second in range(0, 600, 20):
        forecast.record("t", 1.0, float(second), 20.0)
    usual = forecast.arrivals("t", 580.0)
    late = forecast.arrivals("t", 600.0)
    assert usual is not None
    assert late is not None
    assert late.requests_per_s == pytest.approx(usual.requests_per_s, rel=0.3)
