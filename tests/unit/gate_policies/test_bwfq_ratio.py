"""The paper's order, against cases worked by hand from its equations and algorithms."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Waiting
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.registry import new_order
from tests.support.world.labelled import T0, LabelledGate


def ratio(slots: int, *, wake: bool = False, **rates_per_s: float) -> LabelledGate:
    gate = LabelledGate("ratio+wake" if wake else "ratio", slots)
    gate.set_shares(**{tenant: Share(rate_per_s=rate_per_s) for tenant, rate_per_s in rates_per_s.items()})
    return gate


def known(gate: LabelledGate, *tenants: str) -> None:
    """Seen for the first time at T0, with a call that is cancelled."""
    for tenant in tenants:
        gate.arrive(tenant, f"{tenant}-first")
        gate.cancel(f"{tenant}-first")


def test_earned_grows_at_the_base_rate_and_spent_by_one_a_dispatch() -> None:
    gate = ratio(2, a=2.0)
    known(gate, "a")
    assert gate.credits_of("a") == (0.0, 0.0)
    assert gate.arrive("a", "a1", 7.0, T0 + 3.0) == ["a1"]
    assert gate.credits_of("a") == (6.0, 1.0)
    gate.settle("a1", 99.0, T0 + 4.0)
    assert gate.arrive("a", "a2", 7.0, T0 + 4.0) == ["a2"]
    assert gate.credits_of("a") == (8.0, 2.0)


def test_a_new_tenants_first_call_queues_and_is_stranded() -> None:
    """0 > 0 is false, and no completion will ever come."""
    gate = ratio(4, a=5.0)
    assert gate.arrive("a", "a1") == []
    assert isinstance(gate.outcome, Waiting)
    assert gate.stranded == 1
    assert gate.arrive("b", "b1") == []
    assert (gate.stranded, gate.gate.running) == (2, 0)


def test_a_later_call_with_credit_goes_before_the_stranded_and_its_end_wakes_one() -> None:
    gate = ratio(4, a=1.0)
    gate.arrive("a", "a1")
    gate.arrive("a", "a2")
    assert gate.stranded == 2
    assert gate.arrive("a", "a3", 1.0, T0 + 2.0) == ["a3"]
    assert gate.stranded == 0
    assert gate.settle("a3", 1.0, T0 + 3.0) == ["a1"]
    assert gate.settle("a1", 1.0, T0 + 3.0) == ["a2"]
    assert gate.stranded == 0


def test_no_call_strands_with_wake() -> None:
    gate = ratio(2, wake=True)
    assert [gate.arrive("a", label) for label in ("a1", "a2", "a3")] == [["a1"], ["a2"], []]
    assert gate.set_slots(3) == ["a3"]
    assert gate.stranded == 0


def test_added_slots_dispatch_nothing_without_wake() -> None:
    gate = ratio(0, a=1.0)
    gate.arrive("a", "a1")
    assert gate.stranded == 0
    assert gate.set_slots(1) == []
    assert gate.set_slots(2) == []
    assert gate.stranded == 1


def test_priority_is_spent_over_earned_lowest_first_and_a_new_tenant_is_at_zero() -> None:
    gate = ratio(2, wake=True, a=1.0, b=2.0)
    for label in ("a1", "b1"):
        gate.arrive(label[0], label)
    gate.arrive("a", "a2", 1.0, T0 + 4.0)  # 1 / 4
    gate.arrive("b", "b2", 1.0, T0 + 4.0)  # 1 / 8
    gate.arrive("new", "n1", 1.0, T0 + 4.0)  # 0 / max(0, 1)
    order = [gate.settle(ended, 1.0, T0 + 5.0) for ended in ("a1", "b1", "n1")]
    assert order == [["n1"], ["b2"], ["a2"]]


def test_earned_below_one_counts_as_one() -> None:
    gate = ratio(1, wake=True, a=0.1, b=0.1)
    gate.arrive("b", "b0")
    gate.settle("b0")
    gate.arrive("a", "a0")  # spent: a 1, b 1
    gate.arrive("b", "b1", 1.0, T0 + 2.0)  # 1 / max(0.2, 1) = 1
    gate.arrive("a", "a1", 1.0, T0 + 8.0)  # 1 / max(0.8, 1) = 1: a tie, in order of arrival
    assert gate.settle("a0", 1.0, T0 + 8.0) == ["b1"]


def test_the_priority_is_the_one_at_queueing_however_long_it_waits() -> None:
    gate = ratio(1, wake=True, a=1.0, b=1.0)
    for number in range(3):
        gate.arrive("a", f"a{number}")
        if number < 2:
            gate.settle(f"a{number}")
    gate.arrive("a", "stale")  # 3 / 1, and it stays
    gate.arrive("b", "b0")
    gate.settle("a2")
    gate.arrive("b", "b1", 1.0, T0 + 1.0)  # 1 / 1
    gate.arrive("a", "later", 1.0, T0 + 1_000.0)  # 3 / 1000
    order = [gate.settle(ended, 1.0, T0 + 1_000.0) for ended in ("b0", "later", "b1")]
    assert order == [["later"], ["b1"], ["stale"]]


def test_a_completion_dispatches_without_any_test_of_credit() -> None:
    gate = ratio(1, a=1.0)
    gate.arrive("a", "a1")
    gate.arrive("a", "a2", 1.0, T0 + 0.5)
    assert gate.settle("a2", 1.0, T0 + 0.5) == ["a1"]
    assert gate.credits_of("a") == (0.5, 2.0)


def test_a_change_of_rate_counts_from_the_next_call_on() -> None:
    gate = ratio(1, a=1.0)
    known(gate, "a")
    gate.set_shares(a=Share(rate_per_s=10.0))
    gate.arrive("a", "brings the new rate", 1.0, T0 + 5.0)
    gate.settle("brings the new rate", 1.0, T0 + 5.0)
    gate.arrive("a", "a1", 1.0, T0 + 6.0)
    assert gate.credits_of("a") == (15.0, 2.0)


def test_orders_are_made_by_name_and_an_unknown_one_is_named() -> None:
    assert (new_order("ratio").is_conserving, new_order("ratio+wake").is_conserving) == (False, True)
    with pytest.raises(ValueError, match="unknown order 'nonsense'; there are: bwfq, fcfs, ratio"):
        new_order("nonsense")
