"""The paper's order, against cases worked by hand from its equations and algorithms."""

from __future__ import annotations

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.interface import Dispatched, Queued
from dispatcher.policies.old_orders.ratio import Ratio
from dispatcher.policies.old_orders.registry import new_gate

T0 = 1_000.0


def ratio(slots: int, *, wake: bool = False, **rates_per_s: float) -> Ratio:
    gate = Ratio(slots, wake=wake)
    for tenant, rate_per_s in rates_per_s.items():
        gate.set_share(tenant, Share(rate_per_s=rate_per_s), T0)
    return gate


def known(gate: Ratio, *tenants: str) -> None:
    """Seen for the first time at T0, with a request that runs to its end at once."""
    slots = gate.slots
    for tenant in tenants:
        gate.arrive(tenant, f"{tenant}-first", 1.0, T0)
        gate.cancel(f"{tenant}-first", T0)
    gate.set_slots(slots, T0)


def test_earned_grows_at_the_base_rate_and_spent_by_one_a_dispatch() -> None:
    gate = ratio(2, a=2.0)
    known(gate, "a")
    assert gate.credits_of("a") == (0.0, 0.0)
    assert gate.arrive("a", "a1", 7.0, T0 + 3.0) == Dispatched("a", "a1", 7.0)
    assert gate.credits_of("a") == (6.0, 1.0)
    gate.settle("a1", 99.0, T0 + 4.0)
    assert gate.arrive("a", "a2", 7.0, T0 + 4.0) == Dispatched("a", "a2", 7.0)
    assert gate.credits_of("a") == (8.0, 2.0)


def test_a_new_tenants_first_request_queues_and_is_stranded() -> None:
    """0 > 0 is false, and no completion will ever come."""
    gate = ratio(4, a=5.0)
    assert gate.arrive("a", "a1", 1.0, T0) == Queued("a", "a1", 1)
    assert (gate.stranded, gate.stranded_total) == (1, 1)
    assert gate.arrive("b", "b1", 1.0, T0) == Queued("b", "b1", 2)
    assert (gate.stranded, gate.stranded_total, gate.running) == (2, 2, 0)


def test_a_later_request_with_credit_goes_before_the_stranded_and_its_end_wakes_one() -> None:
    gate = ratio(4, a=1.0)
    gate.arrive("a", "a1", 1.0, T0)
    gate.arrive("a", "a2", 1.0, T0)
    assert gate.arrive("a", "a3", 1.0, T0 + 2.0) == Dispatched("a", "a3", 1.0)
    assert gate.stranded == 0
    assert gate.settle("a3", 1.0, T0 + 3.0) == Dispatched("a", "a1", 1.0)
    assert gate.settle("a1", 1.0, T0 + 3.0) == Dispatched("a", "a2", 1.0)
    assert (gate.stranded, gate.stranded_total) == (0, 2)


def test_nothing_strands_with_wake() -> None:
    gate = ratio(2, wake=True)
    assert gate.arrive("a", "a1", 1.0, T0) == Dispatched("a", "a1", 1.0)
    assert gate.arrive("a", "a2", 1.0, T0) == Dispatched("a", "a2", 1.0)
    assert gate.arrive("a", "a3", 1.0, T0) == Queued("a", "a3", 1)
    assert gate.set_slots(3, T0) == (Dispatched("a", "a3", 1.0),)
    assert gate.stranded_total == 0


def test_added_slots_dispatch_nothing_without_wake() -> None:
    gate = ratio(0, a=1.0)
    gate.arrive("a", "a1", 1.0, T0)
    assert gate.stranded == 0
    assert gate.set_slots(1, T0) == ()
    assert gate.set_slots(2, T0) == ()
    assert (gate.stranded, gate.stranded_total) == (1, 1)


def test_priority_is_spent_over_earned_lowest_first_and_one_new_is_at_zero() -> None:
    gate = ratio(2, wake=True, a=1.0, b=2.0)
    for name in ("a1", "b1"):
        gate.arrive(name[0], name, 1.0, T0)
    gate.arrive("a", "a2", 1.0, T0 + 4.0)  # 1 / 4
    gate.arrive("b", "b2", 1.0, T0 + 4.0)  # 1 / 8
    gate.arrive("new", "n1", 1.0, T0 + 4.0)  # 0 / max(0, 1)
    order = [gate.settle(ended, 1.0, T0 + 5.0) for ended in ("a1", "b1", "n1")]
    assert [dispatched.invocation_id for dispatched in order if dispatched] == ["n1", "b2", "a2"]


def test_earned_below_one_counts_as_one() -> None:
    gate = ratio(1, wake=True, a=0.1, b=0.1)
    gate.arrive("b", "b0", 1.0, T0)
    gate.settle("b0", 1.0, T0)
    gate.arrive("a", "a0", 1.0, T0)  # spent: a 1, b 1
    gate.arrive("b", "b1", 1.0, T0 + 2.0)  # 1 / max(0.2, 1) = 1
    gate.arrive("a", "a1", 1.0, T0 + 8.0)  # 1 / max(0.8, 1) = 1: a tie, in order of arrival
    first = gate.settle("a0", 1.0, T0 + 8.0)
    assert first is not None
    assert first.invocation_id == "b1"


def test_the_priority_is_the_one_at_queueing_however_long_it_waits() -> None:
    gate = ratio(1, wake=True, a=1.0, b=1.0)
    for number in range(3):
        gate.arrive("a", f"a{number}", 1.0, T0)
        if number < 2:
            gate.settle(f"a{number}", 1.0, T0)
    gate.arrive("a", "stale", 1.0, T0)  # 3 / 1, and it stays
    gate.arrive("b", "b0", 1.0, T0)
    gate.settle("a2", 1.0, T0)
    gate.arrive("b", "b1", 1.0, T0 + 1.0)  # 1 / 1
    gate.arrive("a", "later", 1.0, T0 + 1_000.0)  # 3 / 1000
    order = [gate.settle(ended, 1.0, T0 + 1_000.0) for ended in ("b0", "later", "b1")]
    assert [dispatched.invocation_id for dispatched in order if dispatched] == ["later", "b1", "stale"]


def test_a_completion_dispatches_without_any_test_of_credit() -> None:
    gate = ratio(1, a=1.0)
    gate.arrive("a", "a1", 1.0, T0)
    gate.arrive("a", "a2", 1.0, T0 + 0.5)
    assert gate.settle("a2", 1.0, T0 + 0.5) == Dispatched("a", "a1", 1.0)
    assert gate.credits_of("a") == (0.5, 2.0)


def test_a_change_of_rate_counts_from_then_on() -> None:
    gate = ratio(1, a=1.0)
    known(gate, "a")
    gate.set_share("a", Share(rate_per_s=10.0), T0 + 5.0)
    gate.arrive("a", "a1", 1.0, T0 + 6.0)
    assert gate.credits_of("a") == (15.0, 1.0)


def test_orders_are_made_by_name_and_an_unknown_one_is_named() -> None:
    literal, waking = new_gate("ratio", slots=1), new_gate("ratio+wake", slots=1)
    assert isinstance(literal.arrive("a", "a1", 1.0, T0), Queued)
    assert isinstance(waking.arrive("a", "a1", 1.0, T0), Dispatched)
    with pytest.raises(ValueError, match="unknown order 'nonsense'; there are: bwfq, fcfs, ratio"):
        new_gate("nonsense", slots=1)
