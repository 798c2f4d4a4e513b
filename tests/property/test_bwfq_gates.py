"""What holds for every order of the gate, found through the registry, whatever is done to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from dispatcher.model.commands import parse_call_id
from dispatcher.policies.orders.registry import ORDERS
from dispatcher.shard.alone import CostGate
from tests.support.world.driver import Driver, Op, stories

NOT_WORK_CONSERVING = {"ratio"}
FIRST_COME_WITHIN_A_TENANT = {"bwfq", "fcfs", "sfq", "virtual-clock", "virtual-clock+cap"}
LEAD_MAX = 16.0

every_order = pytest.mark.parametrize("order", sorted(ORDERS))


def new_gate(order: str) -> CostGate:
    return CostGate(order, 2, lead_max=LEAD_MAX, now=1000.0)


@every_order
@settings(max_examples=80, deadline=None)
@given(played=stories())
def test_slots_are_never_exceeded_and_nothing_is_lost_or_dispatched_twice(order: str, played: list[Op]) -> None:
    gate = new_gate(order)
    driver = Driver(gate)
    for op in played:
        running_before, slots_before = gate.running, gate.slots
        driver.play(op)
        assert gate.running <= max(gate.slots, running_before)
        assert gate.running <= gate.slots or gate.slots < slots_before or running_before > slots_before
        assert (gate.running, gate.waiting) == (len(driver.running), len(driver.waiting))
        if order not in NOT_WORK_CONSERVING:
            assert gate.running >= gate.slots or gate.waiting == 0
    rows = gate.shard.tenant_rows()
    assert sum(row.reserved for row in rows) == sum(driver.cost[name] for name in driver.running)
    assert sum(row.service for row in gate.shard.usage_rows()) == driver.settled
    ids = [dispatched.id for dispatched in driver.dispatches]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("order", sorted(ORDERS.keys() - NOT_WORK_CONSERVING))
@settings(max_examples=80, deadline=None)
@given(played=stories())
def test_while_capacity_lasts_every_call_is_dispatched_exactly_once(order: str, played: list[Op]) -> None:
    gate = new_gate(order)
    driver = Driver(gate)
    for op in played:
        driver.play(op)
    driver.set_slots(Op("set_slots", 0, 1, 0.0))
    while driver.running:
        driver.settle(Op("settle", 0, 2, 0.0))
    assert driver.waiting == {}
    assert (gate.running, gate.waiting, gate.shard.state.calls) == (0, 0, {})


@every_order
@settings(max_examples=60, deadline=None)
@given(played=stories())
def test_the_same_story_gives_the_same_decisions(order: str, played: list[Op]) -> None:
    first, second = Driver(new_gate(order)), Driver(new_gate(order))
    for op in played:
        first.play(op)
        second.play(op)
    assert first.dispatches == second.dispatches


@pytest.mark.parametrize("order", sorted(FIRST_COME_WITHIN_A_TENANT))
@settings(max_examples=80, deadline=None)
@given(played=stories())
def test_within_a_tenant_first_come_is_first_served(order: str, played: list[Op]) -> None:
    driver = Driver(new_gate(order))
    for op in played:
        driver.play(op)
    by_tenant: dict[str, list[tuple[str, int]]] = {}
    for dispatched in driver.dispatches:
        by_tenant.setdefault(driver.tenant[dispatched.id], []).append(parse_call_id(dispatched.id))
    assert all(numbers == sorted(numbers) for numbers in by_tenant.values())
