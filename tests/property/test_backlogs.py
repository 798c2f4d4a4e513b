"""The incremental sums of what waits equal sums made anew, after any history with lost appends, folds and snapshots."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from dispatcher.model.commands import Accept, End, Tick, call_id
from dispatcher.policies.tiers import Tier
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, load
from dispatcher.shard.waits.backlogs import CLASSES, DEFERRED_RANK, SCALE, Levels, class_of, scaled
from dispatcher.shard.waits.estimate import sum_changed
from dispatcher.shard.waits.learned import COSTS_MIN
from tests.property.test_shard_machine import TENANTS, ShardMachine
from tests.support.world.processes import accept

LEVELS = st.floats(1e-3, 1e6)
QUEUES = st.lists(st.tuples(st.floats(1e-2, 1e9), st.floats(0.01, 100.0)), max_size=40)
"""Service and weight."""

Sums = dict[tuple[str, int, bool, bool], dict[int, tuple[int, int, int]]]
"""By model, rank, whether in service units, and whether forecast: queues, service and weight of each class."""


@given(QUEUES, st.lists(LEVELS, min_size=1, max_size=5))
def test_what_queues_get_is_exact_to_the_width_of_a_class(
    queues: list[tuple[float, float]], levels: list[float]
) -> None:
    sums = Levels()
    for service, weight in queues:
        sums.add(scaled(service), scaled(weight))
    before = 0.0
    for level in sorted(levels):
        exact = sum(min(service, level * weight) for service, weight in queues)
        found = sums.given(level)
        assert exact * (1 - 1e-6) <= found <= exact * (1 + 1 / CLASSES) + 1e-6
        assert found >= before * (1 - 1e-12), "it grows with the level"
        before = found
    assert sums.given(inf) == pytest.approx(sum(service for service, _ in queues))


@given(QUEUES, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_the_order_of_changes(queues: list[tuple[float, float]], random: object) -> None:
    first, second = Levels(), Levels()
    for service, weight in queues:
        first.add(scaled(service), scaled(weight))
    others = [(scaled(service * 3.7), scaled(weight)) for service, weight in queues]
    steps = [(scaled(service), scaled(weight)) for service, weight in queues]
    random.shuffle(steps)  # type: ignore[attr-defined]
    for step, other in zip(steps, others, strict=True):
        second.add(*other)
        second.add(*step)
    for other in others:
        second.add(*other, -1)
    assert first.sums == second.sums, "to the last bit"


@given(st.floats(1e-12, 1e15), st.floats(1.0, 2.0))
def test_a_higher_level_has_no_lower_class(level: float, factor: float) -> None:
    assert class_of(level) <= class_of(level * factor) <= class_of(level) + CLASSES


def kept(shard: Shard) -> Sums:
    """The incremental sums, as a reader finds them."""
    sum_changed(shard.state)
    found: Sums = {}
    for model, ranks in shard.state.waits.backlogs.ranks.items():
        for rank, sums in ranks.items():
            for is_service, pair in ((False, sums.calls), (True, sums.service)):
                for is_forecast, levels in enumerate(pair):
                    if levels.sums:
                        found[model, rank, is_service, bool(is_forecast)] = levels.sums
    return found


def anew(shard: Shard) -> Sums:
    """The same sums, made from the state's calls and records alone."""
    state, found = shard.state, defaultdict[tuple[str, int, bool, bool], dict[int, tuple[int, int, int]]](dict)
    for tenant in state.tenants.values():
        with_costs = {(model, False) for name, model in state.waits.costs if name == tenant.name}
        for model, deferred in with_costs | {*tenant.queues}:
            calls = [call for call in state.calls.values() if call.queued and call.tenant is tenant]
            count = sum((call.model, call.deferred) == (model, deferred) for call in calls)
            costs = state.waits.costs.get((tenant.name, model))
            is_known = costs is not None and costs.ends >= COSTS_MIN and costs.mean > 0
            unit = costs.mean if costs is not None and is_known else 1.0
            later = count + (0.0 if costs is None or deferred else costs.recent)
            rank = Tier(tenant.config.tier).rank if state.settings.tiers is not None else 0
            for is_forecast, number in enumerate((count, later)):
                service, weight = int(number * unit * SCALE), int(tenant.config.weight * SCALE)
                if service:
                    sums = found[model, DEFERRED_RANK if deferred else rank, is_known, bool(is_forecast)]
                    queues, services, weights = sums.get(class_of(service / weight), (0, 0, 0))
                    sums[class_of(service / weight)] = (queues + 1, services + service, weights + weight)
    return dict(found)


class BacklogMachine(ShardMachine):
    """The machine with more traffic, so that calls end, tenants get costs of their own, and arrivals are counted."""

    tiered = True

    def __init__(self) -> None:
        super().__init__()
        if not self.tiered:
            self.settings = replace(self.settings, tiers=None)
            self.writer, self.reader = Shard(self.settings), Shard(self.settings)

    def next_call(self, tenant: str, **fields: Any) -> Accept:
        self.sequences["p"] += 1
        usual = {"cost": 7.0, "deadline_at": self.now + 99, "waiting_max": 9}
        return accept(call_id("p", self.sequences["p"]), "p", self.now, tenant, **{**usual, **fields})

    @rule(tenant=st.sampled_from(sorted(TENANTS)), ends=st.integers(1, 6), seconds=st.sampled_from([0.01, 1.0, 9.0]))
    def traffic(self, tenant: str, ends: int, seconds: float) -> None:
        for _ in range(ends):
            self.now += seconds
            weight, rate_per_s, burst, tier = TENANTS[tenant]
            call = self.next_call(tenant, weight=weight, rate_per_s=rate_per_s, burst=burst, tier=tier)
            running = [call for call in self.writer.state.calls.values() if call.worker][:2]
            self.write([*(End(each.id, each.attempt, "done", 5, ends) for each in running), call], lose=ends == 3)

    @rule(
        tenant=st.sampled_from(sorted(TENANTS)), version=st.integers(2, 9), weight=st.sampled_from([0.01, 2.5, 100.0])
    )
    def share_changes(self, tenant: str, version: int, weight: float) -> None:
        tier = sorted(str(tier) for tier in Tier)[version % len(Tier)]
        self.write([self.next_call(tenant, model="n", version=version, weight=weight, tier=tier)], False)

    @invariant()
    def sums_are_exact(self) -> None:
        for shard in (self.writer, self.reader):
            assert kept(shard) == anew(shard)

    @rule()
    def undone_decisions_leave_no_trace(self) -> None:
        before = {key: dict(sums) for key, sums in kept(self.writer).items()}
        self.writer.decide([Tick(), self.next_call("a")], self.now + 50.0)
        sum_changed(self.writer.state)
        self.writer.rollback()
        assert kept(self.writer) == before


@pytest.mark.parametrize("tiers", [True, False])
def test_incremental_sums_equal_sums_made_anew(tiers: bool) -> None:
    machine = type("Machine", (BacklogMachine,), {"tiered": tiers})
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))


def test_a_copy_that_folds_and_one_that_decides_have_equal_sums() -> None:
    machine = BacklogMachine()
    machine.join()
    for number in range(60):
        machine.traffic(sorted(TENANTS)[number % 3], 1 + number % 6, (0.01, 1.0, 9.0)[number % 3])
    machine.read()
    assert kept(machine.reader) == kept(machine.writer)
    kinds = {(is_service, is_forecast) for _, _, is_service, is_forecast in kept(machine.writer)}
    assert (True, True) in kinds, "the history reaches tenants with costs of their own, and forecasts"
    restored = load(dump(machine.writer), machine.settings)
    assert kept(restored) == anew(restored)
