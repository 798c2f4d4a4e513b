"""The gate at speed decides what the definitions decide, and forgetting changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.bwfq import TwoClocks
from tests.support.gate.driver import TENANTS, Driver, Op, stories
from tests.support.gate.reference import ReferenceGate

LEAD_MAX = 16.0


@settings(max_examples=1000, deadline=None)
@given(played=stories(share_change=False))
def test_every_decision_and_clock_is_that_of_the_definitions(played: list[Op]) -> None:
    gate, reference = TwoClocks(2, lead_max=LEAD_MAX, forget=False), ReferenceGate(2, lead_max=LEAD_MAX)
    fast, slow = Driver(gate), Driver(reference)
    for op in played:
        fast.play(op)
        slow.play(op)
        assert fast.decisions == slow.decisions
        assert gate.virtual_time == reference.virtual_time
    for tenant, queue in reference.queues.items():
        burst_s = _burst_s(reference.share.get(tenant, Share()))
        assert gate.clocks_of(tenant).vft == queue.clocks.vft
        assert max(gate.clocks_of(tenant).tat, fast.now - burst_s) == max(queue.clocks.tat, fast.now - burst_s)


@settings(max_examples=1000, deadline=None)
@given(played=stories())
def test_forgetting_changes_no_decision(played: list[Op]) -> None:
    forgetful, elephant = (Driver(TwoClocks(2, lead_max=LEAD_MAX, forget=forget)) for forget in (True, False))
    for op in played:
        forgetful.play(op)
        elephant.play(op)
    assert forgetful.decisions == elephant.decisions
    assert forgetful.gate.virtual_time == elephant.gate.virtual_time


WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0, "e": 4.0}


@settings(max_examples=500, deadline=None)
@given(played=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=150), slots=st.integers(1, 3))
def test_a_waiting_tenant_is_overtaken_within_its_weight(played: list[tuple[bool, int]], slots: int) -> None:
    """Costs equal and known: while i waits for its turn, j gets at most w_j / w_i + 1 dispatches."""
    driver = Driver(TwoClocks(slots))
    for name, weight in WEIGHTS.items():
        driver.gate.set_share(name, Share(weight=weight), driver.now)
    overtaken: dict[str, dict[str, int]] = {}
    for arrives, pick in played:
        seen = len(driver.dispatches)
        driver.play(Op("arrive" if arrives else "settle", pick, 2, 0.25))
        for dispatched in driver.dispatches[seen:]:
            overtaken.pop(dispatched.tenant, None)
            for counts in overtaken.values():
                counts[dispatched.tenant] = counts.get(dispatched.tenant, 0) + 1
        for name in set(driver.waiting.values()):
            overtaken.setdefault(name, {})
        for waiter, counts in overtaken.items():
            for name, count in counts.items():
                assert count <= WEIGHTS[name] / WEIGHTS[waiter] + 1, f"{name} overtook {waiter} {count} times"


@settings(max_examples=300, deadline=None)
@given(played=stories())
def test_heaps_and_memory_stay_in_proportion(played: list[Op]) -> None:
    gate = TwoClocks(2, lead_max=LEAD_MAX)
    driver = Driver(gate)
    for op in played * 3:
        driver.play(op)
        entries = len(gate._ready) + len(gate._surplus) + len(gate._later)
        assert entries <= 4 * gate._queues + 64 + 2 * 32 * 3
        assert gate.tenants <= len(TENANTS)
        assert len(gate._idle) <= gate.tenants
        assert len(gate._held) == len(driver.waiting) + len(driver.running)


def _burst_s(share: Share) -> float:
    return share.burst / share.rate_per_s if share.rate_per_s else 0.0
