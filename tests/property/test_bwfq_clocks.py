"""The shard decides what the definitions decide, and forgetting changes nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.facts import Dispatched
from dispatcher.policies.clocks import Share
from dispatcher.shard.alone import CostGate
from tests.support.world.driver import TENANTS, Driver, Op, stories
from tests.support.world.reference import ReferenceGate

LEAD_MAX = 16.0
START_S = 1000.0


def new_gate(*, forgets: bool = True) -> CostGate:
    gate = CostGate("bwfq", 2, lead_max=LEAD_MAX, now=START_S)
    if not forgets:
        gate.shard.state.idle.due_parts = lambda *_: iter(())  # type: ignore[method-assign]
    return gate


def moves(dispatches: list[Dispatched]) -> list[object]:
    """All of each dispatch but tat, of which the reference keeps values that are long past."""
    return [(one.id, one.in_profile, one.rate_per_s, one.weight, one.clocks[1], one.virtual_time) for one in dispatches]


@settings(max_examples=400, deadline=None)
@given(played=stories(share_change=False))
def test_every_decision_and_clock_is_that_of_the_definitions(played: list[Op]) -> None:
    gate, reference = new_gate(forgets=False), ReferenceGate(2, lead_max=LEAD_MAX)
    fast, slow = Driver(gate), Driver(reference)
    for op in played:
        fast.play(op)
        slow.play(op)
        assert gate.shard.state.virtual_time == reference.virtual_time
    assert moves(fast.dispatches) == moves(slow.dispatches)
    for name, queue in reference.queues.items():
        tat, vft = gate.shard.state.tenants[name].clocks
        burst_s = _burst_s(reference.share.get(name, Share()))
        assert vft == queue.clocks.vft
        assert max(tat, fast.now - burst_s) == max(queue.clocks.tat, fast.now - burst_s)


@settings(max_examples=400, deadline=None)
@given(played=stories())
def test_forgetting_changes_no_decision(played: list[Op]) -> None:
    forgetful, elephant = Driver(new_gate()), Driver(new_gate(forgets=False))
    for op in played:
        forgetful.play(op)
        elephant.play(op)
    assert moves(forgetful.dispatches) == moves(elephant.dispatches)


WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0, "e": 4.0}


@settings(max_examples=300, deadline=None)
@given(played=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=150), slots=st.integers(1, 3))
def test_a_waiting_tenant_is_overtaken_within_its_weight(played: list[tuple[bool, int]], slots: int) -> None:
    """Costs equal and known: while i waits for its turn, j gets at most w_j / w_i + 1 dispatches."""
    driver = Driver(CostGate("bwfq", slots, now=START_S))
    driver.gate.set_shares({name: Share(weight=weight) for name, weight in WEIGHTS.items()})
    overtaken: dict[str, dict[str, int]] = {}
    for arrives, pick in played:
        seen = len(driver.dispatches)
        driver.play(Op("arrive" if arrives else "settle", pick, 2, 0.25))
        for dispatched in driver.dispatches[seen:]:
            tenant = driver.tenant[dispatched.id]
            overtaken.pop(tenant, None)
            for counts in overtaken.values():
                counts[tenant] = counts.get(tenant, 0) + 1
        for name in set(driver.waiting.values()):
            overtaken.setdefault(name, {})
        for waiter, counts in overtaken.items():
            for name, count in counts.items():
                assert count <= WEIGHTS[name] / WEIGHTS[waiter] + 1, f"{name} overtook {waiter} {count} times"


@settings(max_examples=150, deadline=None)
@given(played=stories())
def test_heaps_and_memory_stay_in_proportion(played: list[Op]) -> None:
    gate = new_gate()
    driver, state, most = Driver(gate), gate.shard.state, 0
    for op in played * 3:
        driver.play(op)
        most = max(most, len(state.calls))
        for lanes in state.lanes.of.values():
            for index in lanes.values():
                entries = len(index._ready) + len(index._surplus) + len(index._later)  # type: ignore[attr-defined]
                assert entries <= 4 * len(TENANTS) + 64
        assert state.tenants.keys() <= set(TENANTS)
        assert len(state.idle) <= len(state.tenants)
        assert state.calls.keys() == driver.waiting.keys() | driver.running
        assert len(state.deadlines) <= 2 * most + 64


def _burst_s(share: Share) -> float:
    return share.burst / share.rate_per_s if share.rate_per_s else 0.0
