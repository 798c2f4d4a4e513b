"""What began late lately counts beside what is played forward."""

from __future__ import annotations

import math

import pytest

from dispatcher.policies.planning.begun import TENANTS_MAX, Begun, BegunRecord
from dispatcher.policies.planning.choice import cost
from dispatcher.policies.planning.forward import Play, Start, StartingWorker


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
