"""What plans forecast is compared with the requests that start or stay overdue until the forecast's end."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.forecast_record import TENANTS_MAX, ForecastRecord, ForecastSums
from dispatcher.policies.planning.plan import Plan
from dispatcher.shard.proposals import record_forecast
from tests.support.world.lone_shard import T0, LoneShard, swap_report

NOW = 1000.0


def test_starts_in_time_and_late_and_what_still_waits() -> None:
    record = ForecastRecord()
    record.begin({"x": 0.5, "y": 0.0}, 60.0, NOW)
    for due_at, at in ((NOW + 20, NOW + 5), (NOW + 20, NOW + 20), (NOW + 20, NOW + 21)):
        record.on_started("x", due_at, at)
    record.on_started("unknown", NOW + 1, NOW + 2)
    record.end({"x": 1, "unknown": 7})
    assert record.all == record.tenants["x"] == ForecastSums(4, 2, 2.0, 0.0)
    assert set(record.tenants) == {"x"}
    assert not record.is_open


def test_the_error_is_that_of_each_tenant_and_does_not_cancel() -> None:
    record = ForecastRecord()
    record.begin({"x": 1.0, "y": 0.0}, 60.0, NOW)
    for tenant in "xy":
        record.on_started(tenant, NOW + 20, NOW + (1 if tenant == "x" else 30))
    record.end({})
    assert (record.all.forecast, record.all.in_time) == (1.0, 1)
    assert record.all.error_part == 1.0


@pytest.mark.parametrize(
    ("due_at", "at", "counts"),
    [
        (NOW + 90, NOW + 61, (0, 0)),  # of the next forecast
        (NOW + 50, NOW + 61, (1, 0)),  # due before the end, started after it
        (NOW + 90, NOW + 60, (1, 1)),
    ],
)
def test_requests_about_the_end(due_at: float, at: float, counts: tuple[int, int]) -> None:
    record = ForecastRecord()
    record.begin({"x": 0.0}, 60.0, NOW)
    record.on_started("x", due_at, at)
    record.end({})
    assert (record.all.requests, record.all.in_time) == counts


def test_one_forecast_is_followed_at_a_time() -> None:
    record = ForecastRecord()
    record.begin({}, 60.0, NOW)
    assert not record.is_open
    record.begin({"x": 0.0}, 60.0, NOW)
    record.begin({"y": 0.0}, 600.0, NOW + 2)
    assert record.ends_at == NOW + 60.0
    record.on_started("y", NOW + 9, NOW + 3)
    record.end({})
    assert record.all.requests == 0
    assert record.ended == 1


def test_the_sums_of_tenants_are_bounded() -> None:
    record = ForecastRecord()
    names = [f"t{number}" for number in range(TENANTS_MAX + 10)]
    record.begin(dict.fromkeys(names, 0.0), 60.0, NOW)
    for name in names:
        record.on_started(name, NOW + 1, NOW)
    record.end({})
    assert len(record.tenants) == TENANTS_MAX
    assert record.all.requests == TENANTS_MAX + 10


def test_a_gate_counts_first_attempts_and_its_overdue_calls() -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": 3.0, "b": 3.0}))
    state = shard.shard.state
    assert not record_forecast(state, Plan(T0, {}, {}, late_parts={"x": 0.25}, forecast_s=30.0), T0)
    names = [shard.call("x", due_at=T0 + 10, model="a"), *(shard.call("x", due_at=T0 + 20, model="a") for _ in "12")]
    shard.give_back(names[0], "declined")
    shard.decide(now=T0 + 15)
    shard.end(names[0])
    shard.decide(now=T0 + 31)
    assert not record_forecast(state, Plan(T0 + 29, {}, {}), T0 + 29)
    assert record_forecast(state, Plan(T0 + 31, {}, {}), T0 + 31)
    found = state.waits.forecasts.tenants["x"]
    assert (found.requests, found.in_time, found.forecast) == (3, 2, 2.25)
