"""The two-clock order, step by step, by cases worked by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dispatcher.model.commands import End, Over, Unknown
from dispatcher.policies.clocks import Share, rate_scale
from dispatcher.policies.orders.two_clocks import TwoClocks
from tests.support.world.labelled import T0, LabelledGate, full
from tests.support.world.reference import Clocks


@dataclass(frozen=True)
class Charged:
    in_profile: bool = False
    rate_per_s: float = 0.0
    weight: float = 1.0


def charged(gate: LabelledGate, label: str) -> Charged:
    fact = gate.charges[label]
    return Charged(fact.in_profile, fact.rate_per_s, fact.weight)


def test_a_free_slot_is_taken_at_once_even_without_any_guarantee() -> None:
    gate = LabelledGate()
    assert gate.arrive("a", "a1", 5.0) == ["a1"]
    assert charged(gate, "a1") == Charged(False, 0.0, 1.0)
    assert (gate.gate.running, gate.gate.waiting) == (1, 0)
    assert [row.reserved for row in gate.gate.shard.tenant_rows()] == [5.0]


def test_a_flood_stands_behind_itself_not_before_others() -> None:
    gate = full()
    for number in range(3):
        gate.arrive("flood", f"f{number}")
    for name in ("x", "y"):
        gate.arrive(name, name)
    assert gate.drain("blocker-0") == ["f0", "x", "y", "f1", "f2"]


def test_weights_share_the_surplus() -> None:
    gate = full(heavy=Share(weight=3.0))
    for number in range(6):
        gate.arrive("heavy", f"h{number}")
        gate.arrive("light", f"l{number}")
    first = gate.drain("blocker-0")[:8]
    assert sum(label.startswith("h") for label in first) == 6


def test_in_profile_goes_before_surplus_until_its_bucket_is_empty() -> None:
    gate = full(owed=Share(rate_per_s=1.0, burst=2.0))
    for number in range(4):
        gate.arrive("other", f"o{number}")
        gate.arrive("owed", f"g{number}")
    # Burst 2 at rate 1: dispatches at a bucket of 2, 1 and 0 seconds behind, then the surplus, where vft is 3 ahead.
    assert gate.drain("blocker-0") == ["g0", "g1", "g2", "o0", "o1", "o2", "o3", "g3"]


def test_settlement_moves_both_clocks_by_the_recorded_share() -> None:
    gate = LabelledGate(slots=2)
    gate.set_shares(a=Share(weight=2.0, rate_per_s=4.0, burst=0.0))
    gate.arrive("a", "charged", 8.0)
    gate.arrive("a", "surplus", 8.0)
    gate.set_shares(a=Share(weight=1.0, rate_per_s=1.0, burst=0.0))
    gate.arrive("a", "brings the new share", 1.0)
    gate.cancel("brings the new share")
    assert gate.state.tenants["a"].config.rate_per_s == 1.0
    gate.settle("charged", 12.0)
    assert gate.clocks_of("a") == Clocks(tat=T0 + 3.0, vft=10.0)
    gate.settle("surplus", 4.0)
    assert gate.clocks_of("a") == Clocks(tat=T0 + 3.0, vft=8.0)
    assert gate.state.tenants["a"].spent == 16.0
    assert [row.reserved for row in gate.gate.shard.tenant_rows()] == [0.0]


def test_a_refund_counts_for_a_waiting_tenant_even_below_virtual_time() -> None:
    """It was charged for service that it did not get: lifting it at its dispatch would keep the difference."""
    gate = full(2)
    for number in range(4):
        gate.arrive("high", f"h{number}", 10.0)
    for number in range(20):
        gate.arrive("exact", f"e{number}")
    assert gate.settle("blocker-0", 0.0) == ["h0"]
    ended = "blocker-1"
    for number in range(9):
        assert gate.settle(ended) == [f"e{number}"]
        ended = f"e{number}"
    after_refund = gate.settle("h0", 1.0)
    for _ in range(3):
        after_refund += gate.settle(after_refund[-1], 1.0)
    assert after_refund == ["h1", "h2", "h3", "e9"]


def test_an_idle_tenant_saves_no_virtual_time() -> None:
    gate = full()
    gate.arrive("early", "early")
    for number in range(50):
        gate.arrive("busy", f"b{number}")
    ended = "blocker-0"
    for _ in range(40):
        (ended,) = gate.settle(ended)
    for number in range(5):
        gate.arrive("early", f"again{number}")
    order = gate.drain(ended, 1.0)
    assert "again4" in order
    assert [label for label in order[:6] if label.startswith("again")] != [f"again{number}" for number in range(5)]


def test_overbooked_guarantees_shrink_while_both_are_active() -> None:
    gate = full(a=Share(rate_per_s=10.0), b=Share(rate_per_s=10.0))
    scale = gate.state.scale
    gate.set_capacity(10.0)
    gate.arrive("a", "a1")
    assert scale() == 0.9
    gate.arrive("b", "b1")
    assert scale() == pytest.approx(0.45)
    assert gate.settle("blocker-0", 0.0) == ["a1"]
    assert charged(gate, "a1") == Charged(True, 4.5, 1.0)
    gate.set_shares(b=Share(rate_per_s=0.0))
    gate.arrive("b", "b2")
    assert scale() == 0.9
    gate.set_shares(b=Share(rate_per_s=2.0))
    gate.arrive("b", "b3")
    assert scale() == pytest.approx(0.75)
    for label in ("b1", "b2", "b3"):
        gate.cancel(label)
    assert scale() == 0.9
    gate.settle("a1")
    assert scale() == 1.0
    assert (rate_scale(10.0, None), rate_scale(0.0, 1.0)) == (1.0, 1.0)


def test_an_unknown_capacity_scales_nothing() -> None:
    gate = full(a=Share(rate_per_s=10.0))
    gate.set_capacity(5.0)
    gate.arrive("a", "a1")
    assert gate.state.scale() == pytest.approx(0.45)
    gate.set_capacity(0.0)
    assert gate.state.scale() == 1.0


def test_refunds_of_charges_that_were_cut_put_a_tenant_at_most_the_lead_behind() -> None:
    """Four charges of 1,000 count as 1,300 together, because each begins at V + 100 at most. All are refunded."""
    gate = full(4, small=Share(weight=0.01), other=Share(weight=1.0))
    for number in range(4):
        gate.settle(f"blocker-{number}", 0.0)
        gate.arrive("small", f"s{number}", 10.0)
    assert gate.clocks_of("small").vft - gate.state.virtual_time == 1000.0
    for number in range(60):
        gate.arrive("small", f"small{number}", 1.0)
        gate.arrive("other", f"other{number}", 1.0)
    served = [label for number in range(4) for label in gate.settle(f"s{number}", 0.0)]
    while len(served) < 44:
        served += gate.settle(served[len(served) - 4], 1.0)
    assert sum(label.startswith("small") for label in served) == 5


def test_the_lead_must_be_a_positive_number() -> None:
    for lead_max in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="lead_max must be"):
            TwoClocks(lead_max=lead_max)


def test_two_ends_of_one_call_are_one() -> None:
    gate = LabelledGate()
    gate.arrive("a", "a1")
    gate.arrive("a", "a2")
    assert gate.settle("a1", 3.0) == ["a2"]
    spent, (name,) = gate.state.tenants["a"].spent, gate.state.ends
    again = gate.gate.decide(End(name, 1, "done", 0, 0), now=T0)
    assert (again.outcome, again.facts) == (Over(name, 1, "done"), ())
    unknown = gate.gate.decide(End("p-zz", 1, "done", 0, 0), now=T0)
    assert (unknown.outcome, unknown.facts) == (Unknown("p-zz"), ())
    assert (gate.state.tenants["a"].spent, gate.gate.running) == (spent, 1)
