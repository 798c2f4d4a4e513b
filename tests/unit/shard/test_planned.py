"""A plan in the log: it is checked, used while it is fresh, and it can do no harm."""

from __future__ import annotations

from math import inf, nan

import pytest

from dispatcher.model.commands import Done, Plan
from dispatcher.model.facts import ModelOrdered, Planned
from dispatcher.model.fleet import GROUPS_MAX, ORDER_MAX, GroupPlan, WorkerPlan
from dispatcher.shard.swapping import MODELS_S, SKEW_S
from tests.support.world.lone_shard import T0, LoneShard, swap_report

SWAPS = {"a": 2.0, "b": 2.0}
NOW = T0 + 100.0
GROUP = GroupPlan("acme", "b", "normal", 0, 3, NOW + 60.0, NOW + 70.5, True)
LOAD_B = WorkerPlan("w", "b", (0,))


def fleet() -> LoneShard:
    shard = LoneShard(None, swap_report("w", "a", SWAPS), swap_report("v", "b", SWAPS))
    shard.now = NOW
    return shard


def plan(*workers: WorkerPlan, made_at: float = NOW, groups: tuple[GroupPlan, ...] = (GROUP,)) -> Plan:
    return Plan(made_at, workers, groups)


def written(shard: LoneShard) -> Planned | None:
    return next((fact for fact in shard.facts if isinstance(fact, Planned)), None)


def ordered(shard: LoneShard) -> list[tuple[str, str]]:
    return [(fact.worker, fact.model) for fact in shard.facts if isinstance(fact, ModelOrdered)]


def test_a_plan_loads_its_models() -> None:
    shard = fleet()
    assert shard.do(plan(LOAD_B, WorkerPlan("v", "b", ()))) == Done()
    assert written(shard) == Planned(NOW, (LOAD_B, WorkerPlan("v", "b", ())), (GROUP,))
    assert ordered(shard) == [("w", "b")]


def test_a_plan_waits_until_the_swaps_of_a_worker_are_paid() -> None:
    """No call waits. Two swaps of 40 s use up the minute that a worker may swap without a rest, and 20 s more."""
    shard = LoneShard(None, swap_report("w", "a", SWAPS))
    for model, at in (("b", 0.0), ("a", 40.0)):
        shard.do(plan(WorkerPlan("w", model, ()), made_at=T0 + at), T0 + at)
        assert ordered(shard) == [("w", model)]
        shard.do(swap_report("w", model, SWAPS), T0 + at + 40.0)
    for at, orders in ((99.0, []), (100.0, [("w", "b")])):
        shard.do(plan(LOAD_B, made_at=T0 + at), T0 + at)
        assert ordered(shard) == orders


def test_an_old_plan_loads_nothing() -> None:
    shard = LoneShard(None, swap_report("w", "a", {"a": 9.0, "b": 9.0}))
    shard.do(plan(LOAD_B, made_at=T0 + 30), T0 + 30)
    for now in (T0 + 41.0, T0 + 50.0):
        shard.do(swap_report("w", "a", {"a": 9.0, "b": 9.0}), now)
        assert not ordered(shard)


@pytest.mark.parametrize("made_at", [NOW + SKEW_S + 0.1, NOW - MODELS_S - 0.1, 0.0, -1.0, inf, nan])
def test_a_plan_of_another_time_is_dropped(made_at: float) -> None:
    shard = fleet()
    assert shard.do(plan(LOAD_B, made_at=made_at)) == Done()
    assert shard.facts == ()


def test_a_plan_that_is_not_newer_than_the_last_one_is_dropped() -> None:
    shard = fleet()
    shard.do(plan(LOAD_B))
    for made_at in (NOW, NOW - 1.0):
        shard.do(plan(WorkerPlan("v", "a", ()), made_at=made_at))
        assert shard.facts == ()
    shard.do(plan(WorkerPlan("v", "a", ()), made_at=NOW + 1.0))
    assert written(shard) is not None


def test_absent_workers_and_unknown_models_are_dropped() -> None:
    shard = fleet()
    shard.do(plan(WorkerPlan("gone", "a", ()), WorkerPlan("w", "z", ())))
    assert shard.facts == ()
    shard.do(plan(WorkerPlan("gone", "a", ()), LOAD_B._replace(order=(0, 1, -1, 0))))
    assert written(shard) == Planned(NOW, (LOAD_B._replace(order=(0, 0)),), (GROUP,))


def test_a_plan_in_the_log_is_bounded() -> None:
    shard = fleet()
    shard.do(plan(LOAD_B._replace(order=tuple(range(200))), groups=(GROUP,) * 200))
    found = written(shard)
    assert found is not None
    assert len(found.groups) == GROUPS_MAX
    assert found.workers[0].order == tuple(range(ORDER_MAX))


def test_a_fleet_of_one_model_keeps_no_plan() -> None:
    shard = LoneShard()
    shard.do(plan(WorkerPlan("w", "m", ())), T0)
    assert shard.facts == ()
    assert shard.shard.state.plan is None
