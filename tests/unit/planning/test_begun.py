"""What began late lately counts beside what is played forward."""

from __future__ import annotations

import math

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.begun import NONE, TENANTS_MAX, Begun, BegunRecord
from dispatcher.policies.planning.choice import choose, cost
from dispatcher.policies.planning.claims import TenantBacklog, claims
from dispatcher.policies.planning.fleet import ServiceRates
from dispatcher.policies.planning.forward import Play, Start, StartingWorker
from dispatcher.policies.planning.history import Expected
from dispatcher.policies.planning.slo import SloClasses
from tests.support.planning.fleets import NOW, group, worker


def test_late_requests_are_counted_and_fade() -> None:
    record = BegunRecord()
    record.on_started("a", due_at=10.0, now=10.0)
    record.on_started("a", due_at=10.0, now=10.5)
    assert record.of("a", 10.5) == pytest.approx((2.0, 1.0), abs=1e-3)
    assert record.of("a", 910.5) == pytest.approx((2.0 / math.e, 1.0 / math.e), abs=1e-3)
    assert record.of("b", 10.5) == Begun(0.0, 0.0)


def test_a_clock_that_goes_back_adds_nothing() -> None:
    record = BegunRecord()
    record.on_started("a", due_at=10.0, now=10.0)
    assert record.of("a", 0.0) == Begun(1.0, 0.0)


def test_the_tenants_that_began_last_are_kept() -> None:
    record = BegunRecord()
    for number in range(TENANTS_MAX):
        record.on_started(str(number), 0.0, 1.0)
    record.on_started("0", 0.0, 1.0)
    record.on_started("new", 0.0, 1.0)
    assert record.of("1", 1.0).requests == 0.0
    assert record.of("0", 1.0).requests == 2.0
    assert record.of("new", 1.0).requests == 1.0


def test_a_tenant_that_was_late_before_is_the_worst_off() -> None:
    worker = StartingWorker(0, -60.0, 1, 0.0, 0.0, 0.0, 0.0, [0.0], [1.0])
    starts = [Start([worker], [], 1, 2, 60.0, [0.0], [0.0], (1.0, 1.0), had_late) for had_late in ((), (0.0, 0.5))]
    fresh, late = (cost(Play(start).run(lambda _: None), start) for start in starts)
    assert late > fresh == 0.0


def costs(begun_of_flood: Begun, begun_of_small: Begun) -> dict[str, float]:
    """Return the costs of the rules for a tenant far beyond its share, and one within its share."""
    workers = [worker("w", swap_s=5.0)]
    small = {"b": Expected(0.1, 100.0, 20.0)}
    backlogs = [
        TenantBacklog("flood", Share(), [group("a", 5.0, 600.0, 600)], {"a": 1e6}, {}, begun_of_flood),
        TenantBacklog("small", Share(), [group("b", 20.0, 0.5, 5)], {"b": 600.0}, small, begun_of_small),
    ]
    rates = ServiceRates(workers, "ab")
    claimed = claims(backlogs, workers, rates, NOW, SloClasses(), 100)
    assert {piece.tenant for piece in claimed.pieces if not piece.is_entitled} == {"flood"}
    return choose(backlogs, claimed, workers, rates, NOW, "", {"w": "a"}).costs


def test_the_late_requests_of_a_flood_hide_no_other_tenant() -> None:
    assert costs(Begun(1_000.0, 1_000.0), NONE) == costs(NONE, NONE)
    assert costs(NONE, Begun(10.0, 10.0)) != costs(NONE, NONE)
