"""The two-clock gate, step by step, by cases worked by hand."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, nan

import pytest

from dispatcher.policies.clocks import Charge, Clocks, Share, debit, is_forgettable, rate_scale
from dispatcher.policies.old_orders.bwfq import TwoClocks
from dispatcher.policies.old_orders.interface import Dispatched, Queued

T0 = 1_000.0


def full(slots: int = 1, **tenants: Share) -> TwoClocks:
    """Make a gate with every slot taken, each by a tenant of its own: blocker-0, blocker-1, …"""
    gate = TwoClocks(slots, lead_max=100.0)
    for name, share in tenants.items():
        gate.set_share(name, share, T0)
    for number in range(slots):
        gate.arrive(f"blocker-{number}", f"blocker-{number}", 0.0, T0)
    return gate


def drained(gate: TwoClocks, first: str = "blocker-0", now: float = T0) -> list[str]:
    """The ids in the order in which they are dispatched, one slot going from each to the next."""
    order: list[str] = []
    ended: str | None = first
    while ended is not None:
        dispatched = gate.settle(ended, 0.0 if ended == first else 1.0, now)
        ended = None if dispatched is None else dispatched.invocation_id
        order += [] if ended is None else [ended]
    return order


def test_a_free_slot_is_taken_at_once_even_without_any_guarantee() -> None:
    gate = TwoClocks(1)
    decision = gate.arrive("a", "a1", 5.0, T0)
    assert decision == Dispatched("a", "a1", 5.0, False, 0.0, 1.0)
    assert (gate.running, gate.waiting, gate.reserved) == (1, 0, 5.0)


def test_without_a_free_slot_it_waits_at_its_place_in_its_tenants_line() -> None:
    gate = full()
    assert gate.arrive("a", "a1", 1.0, T0) == Queued("a", "a1", 1)
    assert gate.arrive("b", "b1", 1.0, T0) == Queued("b", "b1", 1)
    assert gate.arrive("a", "a2", 1.0, T0) == Queued("a", "a2", 2)
    assert (gate.waiting, gate.waiting_of("a"), gate.waiting_of("unknown")) == (3, 2, 0)


def test_a_decision_cannot_be_changed() -> None:
    decision = TwoClocks(1).arrive("a", "a1", 5.0, T0)
    assert isinstance(decision, Dispatched)
    with pytest.raises((AttributeError, FrozenInstanceError)):
        decision.cost = 1.0  # type: ignore[misc]
    assert decision.charge == Charge(5.0, False, 0.0, 1.0)


def test_a_flood_stands_behind_itself_not_before_others() -> None:
    gate = full()
    for number in range(3):
        gate.arrive("flood", f"f{number}", 1.0, T0)
    for name in ("x", "y"):
        gate.arrive(name, name, 1.0, T0)
    assert drained(gate) == ["f0", "x", "y", "f1", "f2"]


def test_weights_share_the_surplus() -> None:
    gate = full(heavy=Share(weight=3.0))
    for number in range(6):
        gate.arrive("heavy", f"h{number}", 1.0, T0)
        gate.arrive("light", f"l{number}", 1.0, T0)
    first = drained(gate)[:8]
    assert sum(name.startswith("h") for name in first) == 6


def test_in_profile_goes_before_surplus_until_its_bucket_is_empty() -> None:
    gate = full(owed=Share(rate_per_s=1.0, burst=2.0))
    for number in range(4):
        gate.arrive("other", f"o{number}", 1.0, T0)
        gate.arrive("owed", f"g{number}", 1.0, T0)
    # Burst 2 at rate 1: dispatches at a bucket of 2, 1 and 0 seconds behind, then the surplus, where vft is 3 ahead.
    assert drained(gate) == ["g0", "g1", "g2", "o0", "o1", "o2", "o3", "g3"]


def test_a_bucket_that_fills_meanwhile_puts_its_tenant_in_front() -> None:
    gate = full(owed=Share(rate_per_s=0.5, burst=0.0))
    gate.arrive("owed", "g0", 1.0, T0)
    assert gate.settle("blocker-0", 0.0, T0) == Dispatched("owed", "g0", 1.0, True, 0.5, 1.0)
    gate.arrive("owed", "g1", 1.0, T0)
    for number in range(4):
        gate.arrive("other", f"o{number}", 0.1, T0)
    before = gate.settle("g0", 1.0, T0 + 1.9)
    after = gate.settle("o0", 0.1, T0 + 2.0)
    assert [before, after] == [
        Dispatched("other", "o0", 0.1, False, 0.0, 1.0),
        Dispatched("owed", "g1", 1.0, True, 0.5, 1.0),
    ]


def test_surplus_costs_nothing_of_the_guarantee() -> None:
    gate = TwoClocks(4)
    gate.set_share("a", Share(rate_per_s=1.0, burst=0.0), T0)
    charged = [gate.arrive("a", f"a{number}", 1.0, T0) for number in range(4)]
    assert [decision.in_profile for decision in charged if isinstance(decision, Dispatched)] == [True] + [False] * 3
    assert gate.clocks_of("a").tat == T0 + 1.0


def test_settlement_moves_both_clocks_by_the_recorded_terms() -> None:
    gate = TwoClocks(2)
    gate.set_share("a", Share(weight=2.0, rate_per_s=4.0, burst=0.0), T0)
    gate.arrive("a", "charged", 8.0, T0)
    gate.arrive("a", "surplus", 8.0, T0)
    gate.set_share("a", Share(weight=1.0, rate_per_s=1.0, burst=0.0), T0)
    gate.settle("charged", 12.0, T0)
    assert gate.clocks_of("a") == Clocks(tat=T0 + 3.0, vft=10.0)
    gate.settle("surplus", 4.0, T0)
    assert gate.clocks_of("a") == Clocks(tat=T0 + 3.0, vft=8.0)
    assert (gate.settled, gate.reserved) == (16.0, 0.0)


def test_a_refund_counts_for_a_tenant_in_line_even_below_virtual_time() -> None:
    """It was charged for service that it did not get: lifting it at its dispatch would keep the difference."""
    gate = full(2)
    for number in range(4):
        gate.arrive("high", f"h{number}", 10.0, T0)
    for number in range(20):
        gate.arrive("exact", f"e{number}", 1.0, T0)
    first = gate.settle("blocker-0", 0.0, T0)
    assert first is not None
    assert first.tenant == "high"
    ended = "blocker-1"
    for _ in range(9):
        dispatched = gate.settle(ended, 1.0, T0)
        assert dispatched is not None
        assert dispatched.tenant == "exact"
        ended = dispatched.invocation_id
    after_refund = [gate.settle("h0", 1.0, T0)]
    for _ in range(3):
        assert after_refund[-1] is not None
        after_refund.append(gate.settle(after_refund[-1].invocation_id, 1.0, T0))
    assert [dispatched.tenant for dispatched in after_refund if dispatched] == ["high", "high", "high", "exact"]


def test_an_idle_tenant_saves_no_virtual_time() -> None:
    gate = full()
    gate.arrive("early", "early", 1.0, T0)
    for number in range(50):
        gate.arrive("busy", f"b{number}", 1.0, T0)
    ended = "blocker-0"
    for _ in range(40):
        dispatched = gate.settle(ended, 1.0, T0)
        assert dispatched is not None
        ended = dispatched.invocation_id
    for number in range(5):
        gate.arrive("early", f"again{number}", 1.0, T0)
    order = drained(gate, ended)
    assert "again4" in order
    assert [name for name in order[:6] if name.startswith("again")] != [f"again{number}" for number in range(5)]


def test_virtual_time_never_falls_and_lead_is_bounded() -> None:
    gate = full(owed=Share(rate_per_s=1_000.0, burst=10_000.0))
    gate.arrive("waits", "w0", 1.0, T0)
    for number in range(200):
        gate.arrive("owed", f"g{number}", 1.0, T0)
    order = drained(gate)
    assert order.index("w0") == 200
    assert gate.virtual_time <= gate.clocks_of("owed").vft <= gate.virtual_time + 100.0 + 1.0


def test_overbooked_guarantees_shrink_while_both_are_active() -> None:
    gate = full(a=Share(rate_per_s=10.0), b=Share(rate_per_s=10.0))
    gate.set_capacity(10.0, T0)
    gate.arrive("a", "a1", 1.0, T0)
    assert gate.rate_scale == 0.9
    gate.arrive("b", "b1", 1.0, T0)
    assert gate.rate_scale == pytest.approx(0.45)
    dispatched = gate.settle("blocker-0", 0.0, T0)
    assert dispatched == Dispatched("a", "a1", 1.0, True, 4.5, 1.0)
    gate.set_share("b", Share(rate_per_s=0.0), T0)
    assert gate.rate_scale == 0.9
    gate.set_share("b", Share(rate_per_s=2.0), T0)
    assert gate.rate_scale == pytest.approx(0.75)
    assert gate.cancel("b1", T0)
    assert gate.rate_scale == 0.9
    gate.settle("a1", 1.0, T0)
    assert gate.rate_scale == 1.0
    gate.set_capacity(None, T0)
    assert (gate.rate_scale, rate_scale(10.0, None), rate_scale(0.0, 1.0)) == (1.0, 1.0, 1.0)


def test_whoever_gives_up_waiting_is_passed_over_wherever_it_stood() -> None:
    gate = full()
    for number in range(4):
        gate.arrive("a", f"a{number}", 1.0, T0)
    gate.arrive("b", "b0", 1.0, T0)
    assert gate.cancel("a0", T0)
    assert gate.cancel("a2", T0)
    assert not gate.cancel("a2", T0)
    assert not gate.cancel("blocker-0", T0)
    assert not gate.cancel("unknown", T0)
    assert gate.arrive("a", "a4", 1.0, T0) == Queued("a", "a4", 3)
    assert sorted(drained(gate)) == ["a1", "a3", "a4", "b0"]


def test_more_slots_dispatch_waiting_requests_and_fewer_end_none() -> None:
    gate = full(1)
    for number in range(4):
        gate.arrive("a", f"a{number}", 1.0, T0)
    assert [dispatched.invocation_id for dispatched in gate.set_slots(3, T0)] == ["a0", "a1"]
    assert gate.set_slots(1, T0) == ()
    assert (gate.running, gate.slots) == (3, 1)
    assert gate.settle("a0", 1.0, T0) is None
    assert gate.settle("a1", 1.0, T0) is None
    assert gate.settle("blocker-0", 0.0, T0) == Dispatched("a", "a2", 1.0)


def test_a_clock_that_runs_backward_counts_as_standing_still() -> None:
    gate = TwoClocks(1)
    gate.set_share("a", Share(rate_per_s=1.0, burst=5.0), T0)
    gate.arrive("a", "a1", 5.0, T0)
    gate.settle("a1", 5.0, T0 - 500.0)
    assert gate.arrive("a", "a2", 1.0, T0 - 500.0) == Dispatched("a", "a2", 1.0, True, 1.0, 1.0)
    assert gate.clocks_of("a").tat == T0 + 1.0


@pytest.mark.parametrize("cost", [-1.0, inf, nan])
def test_a_cost_that_is_no_cost_is_refused_and_changes_nothing(cost: float) -> None:
    gate = TwoClocks(1)
    with pytest.raises(ValueError, match="cost must be zero or a positive number"):
        gate.arrive("a", "a1", cost, T0)
    gate.arrive("a", "a1", 1.0, T0)
    with pytest.raises(ValueError, match="true_cost must be zero or a positive number"):
        gate.settle("a1", cost, T0)
    assert (gate.running, gate.settled) == (1, 0.0)


@pytest.mark.parametrize("now", [inf, -inf, nan])
def test_a_time_that_is_no_time_is_refused(now: float) -> None:
    gate = TwoClocks(1)
    with pytest.raises(ValueError, match="now must be a finite number"):
        gate.arrive("a", "a1", 1.0, now)
    assert gate.running == 0


def test_other_bad_arguments_are_refused_in_words() -> None:
    gate = full()
    gate.arrive("a", "a1", 1.0, T0)
    for held in ("a1", "blocker-0"):
        with pytest.raises(ValueError, match=f"'{held}' is here already"):
            gate.arrive("b", held, 1.0, T0)
    for other in ("a1", "unknown"):
        with pytest.raises(ValueError, match=f"'{other}' is not running"):
            gate.settle(other, 1.0, T0)
    for slots in (-1, 1.5, nan):
        with pytest.raises(ValueError, match="slots must be"):
            gate.set_slots(slots, T0)  # type: ignore[arg-type]
    for capacity in (0.0, -1.0, nan, inf):
        with pytest.raises(ValueError, match="capacity_per_s must be"):
            gate.set_capacity(capacity, T0)
    for lead_max in (0.0, -1.0, nan):
        with pytest.raises(ValueError, match="lead_max must be"):
            TwoClocks(1, lead_max=lead_max)
    assert drained(gate) == ["a1"]


def test_two_settlements_of_one_invocation_are_one_too_many() -> None:
    gate = TwoClocks(1)
    gate.arrive("a", "a1", 1.0, T0)
    gate.settle("a1", 1.0, T0)
    with pytest.raises(ValueError, match="not running: unknown, waiting, or settled before"):
        gate.settle("a1", 1.0, T0)
    assert (gate.settled, gate.running) == (1.0, 0)


def test_bucket_depth_in_seconds_does_not_depend_on_the_scale() -> None:
    """Found full at scale 1 is full at any scale: only so is forgetting it invisible later."""
    share = Share(rate_per_s=10.0, burst=20.0)
    full_bucket = Clocks(tat=T0 - 2.0)
    assert is_forgettable(full_bucket, share, T0, 0.0)
    kept, fresh = (debit(clocks, share, 9.0, T0, 0.0, rate_scale=0.5) for clocks in (full_bucket, Clocks()))
    assert kept.tat.apply(full_bucket.tat) == fresh.tat.apply(0.0) == T0 - 2.0 + 9.0 / 5.0
