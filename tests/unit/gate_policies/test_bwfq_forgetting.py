"""Tenants that are gone leave no trace in memory, and no decision shows it."""

from __future__ import annotations

from collections import Counter

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.queues import Tenant
from dispatcher.shard.state.indexes import CHECKED_MOST, IDLE_GROUPS, IDLE_PARTS, IdleTenants
from tests.support.world.labelled import T0, LabelledGate


@pytest.mark.parametrize(("log_format", "most"), [(5, 2 * IDLE_GROUPS), (6, 3 * IDLE_GROUPS)])
def test_ten_thousand_tenants_that_came_once_are_not_kept(log_format: int, most: int) -> None:
    gate = LabelledGate()
    gate.state.format = log_format
    for number in range(10_000):
        gate.arrive(f"t{number}", f"i{number}", 1.0, T0 + number)
        gate.settle(f"i{number}", 1.0, T0 + number)
    assert len(gate.state.tenants) <= most


def test_an_entry_checks_few_tenants_and_each_comes_in_turn() -> None:
    idle, seen = IdleTenants(), Counter[str]()
    for number in range(20_000):
        idle.update(Tenant(f"t{number}", (0.0, 0.0)), is_known=True)
    for position in range(4096):  # one entry a minute
        parts = idle.due_parts(position, T0 + 60.0 * position, T0 + 60.0 * (position + 1))
        checked = [name for part in parts for name in part]
        assert CHECKED_MOST <= len(checked) < 1.2 * CHECKED_MOST
        seen.update(checked)
    assert len(seen) == 20_000


def test_in_a_second_as_many_parts_come_as_a_group_has() -> None:
    idle = IdleTenants()
    parts = [list(idle.due_parts(number, T0 + number / 100, T0 + (number + 1) / 100)) for number in range(100)]
    assert sum(map(len, parts)) == IDLE_PARTS
    assert not list(idle.due_parts(0, T0, T0))
    assert len(list(idle.due_parts(0, T0, T0 + 3600.0))) == IDLE_GROUPS * IDLE_PARTS


def test_those_with_a_guarantee_are_kept_until_their_buckets_are_full() -> None:
    gate = LabelledGate()
    for number in range(2_000):
        gate.set_shares(**{f"t{number}": Share(rate_per_s=1.0, burst=100.0)})
        gate.arrive(f"t{number}", f"i{number}", 50.0, T0 + number)
        gate.settle(f"i{number}", 50.0, T0 + number)
    # A bucket charged with 50 at rate 1 is full again 50 s later; its group is looked at within 64 s after that.
    assert 50 <= len(gate.state.tenants) <= 50 + 2 * IDLE_GROUPS
    assert gate.clocks_of("t1999").tat == T0 + 1999 - 100.0 + 50.0


@pytest.mark.parametrize("waits", [False, True])
def test_no_tenant_is_forgotten_while_it_runs_or_waits(waits: bool) -> None:
    gate = LabelledGate()
    gate.arrive("runs", "runs")
    if waits:
        gate.arrive("waits", "waits")
    for number in range(200):
        gate.arrive(f"t{number}", f"i{number}", 1.0, T0 + number)
        gate.cancel(f"i{number}", T0 + number)
    assert gate.settle("runs", 1.0, T0 + 200) == (["waits"] if waits else [])
