"""Entitlement: worked examples, deferred work, and input that is refused."""

from __future__ import annotations

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.entitlement import GroupDemand, TenantDemand, entitle


def demand(
    tenant: str,
    *groups: GroupDemand,
    service: float = 0.0,
    weight: float = 1.0,
    rate: float = 0.0,
    forecast: float = 0.0,
) -> TenantDemand:
    found = groups or ((GroupDemand("only", 10, service, 0.0),) if service else ())
    return TenantDemand(tenant, Share(weight, rate), found, forecast)


def services(*demands: TenantDemand, capacity: float = 10.0) -> dict[str, float]:
    return {name: each.service for name, each in entitle(demands, capacity, 60.0).items()}


def test_a_guarantee_is_a_floor_and_counts_towards_the_share() -> None:
    found = services(demand("a", service=1e6, rate=6.0), demand("b", service=1e6), demand("c", service=1e6))
    assert found == pytest.approx({"a": 360.0, "b": 120.0, "c": 120.0})
    found = services(demand("a", service=1e6, rate=2.0), demand("b", service=1e6), demand("c", service=1e6))
    assert found == pytest.approx({"a": 200.0, "b": 200.0, "c": 200.0})


def test_guarantees_beyond_the_capacity_are_scaled_down() -> None:
    flood, small = demand("a", service=1e6, rate=30.0), demand("b", service=50.0, rate=10.0)
    found = services(flood, small, demand("c", service=1e6, rate=15.0), demand("d", service=1e6, weight=100.0))
    assert found == pytest.approx({"a": 550 * 2 / 3, "b": 50.0, "c": 550 / 3, "d": 0.0})


def test_the_forecast_counts_as_demand_and_comes_last() -> None:
    (found,) = entitle([demand("a", service=500.0, forecast=1e6)], 10.0, 60.0).values()
    assert (found.service, found.requests) == (600.0, {"only": 10})
    (found,) = entitle([demand("a", forecast=70.0)], 10.0, 60.0).values()
    assert (found.service, found.requests) == (70.0, {})


def test_a_share_below_one_request_entitles_it_only_if_guaranteed() -> None:
    large = GroupDemand("large", 3, 3_000.0, 0.0)
    found = entitle([demand("a", large, rate=1.0), demand("b", large)], 10.0, 60.0)
    assert found["a"].guaranteed == 60.0
    assert (found["a"].requests, found["b"].requests) == ({"large": 1}, {"large": 0})


@pytest.mark.parametrize("due_s", [39.9, 0.0, -100.0])
def test_urgent_deferred_work_claims_its_tenants_share(due_s: float) -> None:
    night = GroupDemand("night", 10, 1e6, due_s, is_deferred=True, needed_s=40.0)
    assert services(demand("a", night, rate=5.0), demand("b", service=1e6)) == pytest.approx({"a": 300.0, "b": 300.0})


def test_nothing_to_give_and_nothing_to_do() -> None:
    assert entitle([], 10.0) == {}
    assert services(demand("a", service=5.0, rate=1.0), capacity=0.0) == {"a": 0.0}
    assert services(demand("a", rate=1.0), demand("b")) == {"a": 0.0, "b": 0.0}


def test_weights_of_any_size_are_possible() -> None:
    weights = {"a": 1e-300, "b": 1.0, "c": 1e300}
    found = services(*(demand(name, service=1e3, weight=weight) for name, weight in weights.items()))
    assert sum(found.values()) == pytest.approx(600.0)
    assert found["c"] == pytest.approx(600.0)


@pytest.mark.parametrize(
    ("capacity", "horizon"), [(-1.0, 60.0), (float("inf"), 60.0), (float("nan"), 60.0), (1.0, 0.0), (1.0, float("nan"))]
)
def test_an_impossible_capacity_or_horizon_is_refused(capacity: float, horizon: float) -> None:
    with pytest.raises(ValueError, match="is impossible"):
        entitle([], capacity, horizon)


def test_two_demands_of_one_tenant_are_refused() -> None:
    with pytest.raises(ValueError, match="2 demands are of 1 tenants"):
        entitle([demand("a"), demand("a")], 1.0)


@pytest.mark.parametrize("forecast", [-1.0, float("inf"), float("nan")])
def test_an_impossible_forecast_is_refused(forecast: float) -> None:
    with pytest.raises(ValueError, match="forecast"):
        demand("a", forecast=forecast)


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two groups of one name"):
        demand("a", GroupDemand("g", 1, 1.0, 0.0), GroupDemand("g", 1, 1.0, 0.0))


@pytest.mark.parametrize(
    ("requests", "service", "due_s", "needed_s"),
    [
        (0, 1.0, 0.0, 0.0),
        (1, -1.0, 0.0, 0.0),
        (1, float("nan"), 0.0, 0.0),
        (1, 1.0, float("inf"), 0.0),
        (1, 1.0, float("nan"), 0.0),
        (1, 1.0, 0.0, -1.0),
        (1, 1.0, 0.0, float("nan")),
    ],
)
def test_impossible_groups_are_refused(requests: int, service: float, due_s: float, needed_s: float) -> None:
    with pytest.raises(ValueError, match="group 'g'"):
        GroupDemand("g", requests, service, due_s, needed_s=needed_s)
