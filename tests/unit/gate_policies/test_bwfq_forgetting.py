"""Tenants that are gone leave no trace in memory, and no decision shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.bwfq import TwoClocks
from dispatcher.policies.old_orders.interface import Dispatched

T0 = 1_000.0


def test_ten_thousand_tenants_that_came_once_are_not_kept() -> None:
    gate = TwoClocks(1)
    for number in range(10_000):
        gate.arrive(f"t{number}", f"i{number}", 1.0, T0 + number)
        gate.settle(f"i{number}", 1.0, T0 + number)
    assert gate.tenants <= 3


def test_those_with_a_guarantee_are_kept_until_their_buckets_are_full() -> None:
    gate = TwoClocks(1)
    for number in range(2_000):
        gate.set_share(f"t{number}", Share(rate_per_s=1.0, burst=100.0), T0)
        gate.arrive(f"t{number}", f"i{number}", 50.0, T0 + number)
        gate.settle(f"i{number}", 50.0, T0 + number)
    # A bucket charged with 50 at rate 1 is full again 50 s later; two looks for each new tenant find it soon after.
    assert 50 <= gate.tenants <= 200
    assert gate.clocks_of("t1999").tat == T0 + 1999 - 100.0 + 50.0


@pytest.mark.parametrize("waits", [False, True])
def test_none_is_forgotten_while_it_runs_or_waits(waits: bool) -> None:
    gate = TwoClocks(1)
    gate.arrive("runs", "runs", 1.0, T0)
    if waits:
        gate.arrive("waits", "waits", 1.0, T0)
    for number in range(100):
        gate.arrive(f"t{number}", f"i{number}", 1.0, T0)
        gate.cancel(f"i{number}", T0)
    assert gate.settle("runs", 1.0, T0) == (Dispatched("waits", "waits", 1.0) if waits else None)


def _owed(gate: TwoClocks, burst: float, now: float, rate_per_s: float = 1.0) -> None:
    gate.set_share("a", Share(rate_per_s=rate_per_s, burst=burst), now)


def _raise_burst_while_idle(gate: TwoClocks) -> None:
    _owed(gate, 50.0, T0 + 20.0)


def _raise_burst_while_running(gate: TwoClocks) -> None:
    gate.arrive("a", "again", 0.0, T0 + 20.0)
    _owed(gate, 50.0, T0 + 20.0)


def _raise_burst_while_waiting(gate: TwoClocks) -> None:
    for number in range(8):
        gate.arrive("blocker", f"blocker{number}", 0.0, T0 + 20.0)
    gate.arrive("a", "waits", 0.0, T0 + 20.0)
    _owed(gate, 50.0, T0 + 20.0)
    gate.set_slots(9, T0 + 20.0)


def _take_the_rate_away_and_back(gate: TwoClocks) -> None:
    _owed(gate, 10.0, T0, rate_per_s=0.0)
    for name in ("y", "z"):
        gate.arrive(name, name, 0.0, T0)
        gate.settle(name, 0.0, T0)
    gate.arrive("a", "again", 0.0, T0)
    _owed(gate, 10.0, T0)


@pytest.mark.parametrize(
    "change",
    [_raise_burst_while_idle, _raise_burst_while_running, _raise_burst_while_waiting, _take_the_rate_away_and_back],
)
def test_a_change_of_terms_finds_the_forgotten_and_the_kept_alike(change: Callable[[TwoClocks], None]) -> None:
    charged: list[list[bool]] = []
    for forget in (True, False):
        gate = TwoClocks(8, forget=forget)
        _owed(gate, 10.0, T0)
        gate.arrive("a", "first", 9.0, T0)
        gate.settle("first", 9.0, T0)
        for number in range(6):  # others fall idle: the bucket, full by now, is looked at
            now = T0 if change is _take_the_rate_away_and_back else T0 + 15.0
            gate.arrive(f"x{number}", f"x{number}", 0.0, now)
            gate.settle(f"x{number}", 0.0, now)
        change(gate)
        gate.set_slots(100, T0 + 20.0)
        decisions = [gate.arrive("a", f"a{number}", 10.0, T0 + 20.0) for number in range(8)]
        charged.append([decision.in_profile for decision in decisions if isinstance(decision, Dispatched)])
    assert charged[0] == charged[1]


def test_dead_entries_of_cancelled_heads_are_swept_out() -> None:
    gate = TwoClocks(0)
    gate.arrive("stays", "stays", 1.0, T0)
    for number in range(5_000):
        gate.arrive("a", f"i{number}", 1.0, T0)
        gate.cancel(f"i{number}", T0)
    assert len(gate._surplus) < 100


def test_dead_entries_of_buckets_that_never_fill_are_swept_out() -> None:
    gate = TwoClocks(1)
    gate.set_share("a", Share(rate_per_s=1e-6), T0)
    gate.arrive("a", "i0", 1.0, T0)
    for number in range(1, 5_000):
        gate.arrive("a", f"i{number}", 1.0, T0)
        assert gate.settle(f"i{number - 1}", 1.0, T0) is not None
    assert len(gate._later) < 200
