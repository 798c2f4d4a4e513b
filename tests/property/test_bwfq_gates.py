"""What holds for every order of the gate, found through the registry, whatever is done to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from dispatcher.policies.old_orders.registry import ORDERS, new_gate
from tests.support.gate.driver import Driver, Op, stories

NOT_WORK_CONSERVING = {"ratio"}
FIRST_COME_WITHIN_A_TENANT = {"bwfq", "fcfs", "sfq", "virtual-clock", "virtual-clock+cap"}
LEAD_MAX = 16.0

every_order = pytest.mark.parametrize("order", sorted(ORDERS))


@every_order
@settings(max_examples=200, deadline=None)
@given(played=stories())
def test_slots_are_never_exceeded_and_nothing_is_lost_or_dispatched_twice(order: str, played: list[Op]) -> None:
    driver = Driver(new_gate(order, slots=2, lead_max=LEAD_MAX))
    for op in played:
        running_before, slots_before = driver.gate.running, driver.gate.slots
        driver.play(op)
        gate = driver.gate
        assert gate.running <= max(gate.slots, running_before)
        assert gate.running <= gate.slots or gate.slots < slots_before or running_before > slots_before
        assert (gate.running, gate.waiting) == (len(driver.running), len(driver.waiting))
        assert gate.reserved == sum(dispatched.cost for dispatched in driver.running.values()) >= 0
        assert gate.settled == driver.settled
        if order not in NOT_WORK_CONSERVING:
            assert gate.running >= gate.slots or gate.waiting == 0
    ids = [dispatched.invocation_id for dispatched in driver.dispatches]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("order", sorted(ORDERS.keys() - NOT_WORK_CONSERVING))
@settings(max_examples=200, deadline=None)
@given(played=stories())
def test_while_capacity_lasts_everyone_is_dispatched_exactly_once(order: str, played: list[Op]) -> None:
    driver = Driver(new_gate(order, slots=2, lead_max=LEAD_MAX))
    for op in played:
        driver.play(op)
    driver.set_slots(Op("set_slots", 0, 1, 0.0))
    while driver.running:
        driver.settle(Op("settle", 0, 2, 0.0))
    assert driver.waiting == {}
    assert (driver.gate.running, driver.gate.waiting, driver.gate.reserved) == (0, 0, 0.0)


@every_order
@settings(max_examples=200, deadline=None)
@given(played=stories())
def test_the_same_story_gives_the_same_decisions(order: str, played: list[Op]) -> None:
    first, second = (Driver(new_gate(order, slots=2, lead_max=LEAD_MAX)) for _ in range(2))
    for op in played:
        first.play(op)
        second.play(op)
    assert first.decisions == second.decisions


@pytest.mark.parametrize("order", sorted(FIRST_COME_WITHIN_A_TENANT))
@settings(max_examples=200, deadline=None)
@given(played=stories())
def test_within_a_tenant_first_come_is_first_served(order: str, played: list[Op]) -> None:
    driver = Driver(new_gate(order, slots=2, lead_max=LEAD_MAX))
    for op in played:
        driver.play(op)
    by_tenant: dict[str, list[int]] = {}
    for dispatched in driver.dispatches:
        by_tenant.setdefault(dispatched.tenant, []).append(int(dispatched.invocation_id[1:]))
    assert all(numbers == sorted(numbers) for numbers in by_tenant.values())
