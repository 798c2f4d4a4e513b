"""The demo's workload: sized to the engine, with enough requests on a slow one."""

from __future__ import annotations

import pytest

from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.demo.scene import FLOOD, FLOOD_LOAD, QUIET, QUIET_LOAD, REQUESTS_MIN, Scene, compose
from headgate.workloads.arrivals import Arrival

SECONDS = 10.0


def source(tenant: str) -> list[Arrival]:
    """Requests of 300 service units, one each second."""
    return [Arrival(float(number), tenant, 100, 100) for number in range(1000)]


def scene(capacity_per_s: float) -> Scene:
    return compose(source(QUIET), source(FLOOD), capacity_per_s, SECONDS)


def service(scene: Scene, tenant: str) -> float:
    own = [arrival for arrival in scene.arrivals if arrival.tenant == tenant]
    return sum(WEIGHTED_TOKENS(arrival.input_tokens, arrival.output_tokens) for arrival in own)


@pytest.mark.parametrize("capacity_per_s", [400.0, 1000.0, 10_000.0])
def test_the_load_is_that_part_of_the_capacity(capacity_per_s: float) -> None:
    made = scene(capacity_per_s)
    assert made.seconds == SECONDS
    assert service(made, QUIET) == pytest.approx(QUIET_LOAD * capacity_per_s * SECONDS, rel=0.1)
    assert service(made, FLOOD) == pytest.approx(FLOOD_LOAD * capacity_per_s * SECONDS, rel=0.1)
    assert max(arrival.arrival_s for arrival in made.arrivals) == pytest.approx(SECONDS)


@pytest.mark.parametrize("capacity_per_s", [1.0, 20.0, 200.0, 10_000.0])
def test_each_tenant_sends_enough_requests_on_any_engine(capacity_per_s: float) -> None:
    made = scene(capacity_per_s)
    for tenant, least in REQUESTS_MIN.items():
        assert sum(arrival.tenant == tenant for arrival in made.arrivals) >= least


def test_a_very_slow_engine_has_more_time() -> None:
    made = scene(20.0)
    assert made.seconds > SECONDS
    assert service(made, QUIET) == pytest.approx(QUIET_LOAD * 20.0 * made.seconds, rel=0.15)
