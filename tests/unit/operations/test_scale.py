"""The decision of scaling: single decisions, and days in virtual time with slow, failed and interrupted workers."""

from __future__ import annotations

from random import Random

import pytest

from dispatcher.model.fleet import FleetLoad
from dispatcher.operations.worker_count import ScaleDecision, ScaleSettings, ScaleState, scale
from tests.support.scaling import CAPACITY_PER_S, Pool, World, arrivals, day, oracle_worker_s

ZERO = ScaleSettings(workers_min=0, workers_max=10, scale_to_zero=True)
ONE = ScaleSettings(workers_min=1, workers_max=10)
IDLE = FleetLoad(0, 0, 0, {"standard": 0}, 0.0, 0.0, 0.0)


def load(ready: int, *, service: float = 0.0, per_s: float = 0.0, holding: int = 0) -> FleetLoad:
    waiting = {"standard": 1 if service else 0}
    return FleetLoad(ready, 0, holding, waiting, service, per_s, CAPACITY_PER_S if ready else 0.0)


def settled(settings: ScaleSettings, workers: int, per_s: float, until: int = 1_200) -> ScaleDecision:
    """Return the last decision of a pool that has served this load with so many workers for longer than the hold."""
    decision = ScaleDecision(workers, workers, ScaleState())
    for now in range(0, until, 60):
        decision = scale(settings, decision.state, load(workers, per_s=per_s), workers, workers, now)
    return decision


def test_an_idle_pool_stays_at_zero_and_its_first_arrival_starts_a_worker_at_once() -> None:
    idle = scale(ZERO, ScaleState(), IDLE, 0, 0, 0.0)
    assert idle.workers == 0
    arrived = scale(ZERO, idle.state, load(0, service=500.0), 0, 0, 1.0)
    assert arrived.workers == 1


def test_a_woken_worker_stays_for_its_start_up_and_the_hold() -> None:
    """Nothing waits, because the gate accepts no call without a worker: the request comes back later."""
    state, desired = ScaleState(), 0
    left_at = 0
    for now in range(0, 6_000, 60):
        desired = 1 if now == 1_200 else desired  # set by the process that got the request
        load_now = IDLE if now < 1_500 else load(1)
        decision = scale(ZERO, state, load_now, desired, desired, float(now))
        left_at = now if decision.workers < desired else left_at
        state, desired = decision.state, decision.workers
    assert 1_200 + 300 + 600 <= left_at <= 1_200 + 300 + 600 + 60


def test_a_remembered_capacity_sizes_the_fleet_from_zero() -> None:
    state = ScaleState(service_per_s=CAPACITY_PER_S, start_s=300.0)
    flooded = load(0, service=600 * CAPACITY_PER_S, per_s=2 * CAPACITY_PER_S)
    assert scale(ZERO, state, flooded, 0, 0, 0.0).workers == 8  # 1,200 s of work after the start-up, in 300 s, and 2
    assert scale(ZERO, ScaleState(), flooded, 0, 0, 0.0).workers == 1


def test_a_starting_worker_counts_at_its_expected_time() -> None:
    state = ScaleState(starts=(0.0, 0.0), start_s=300.0, service_per_s=CAPACITY_PER_S)
    busy = load(1, service=200 * CAPACITY_PER_S, per_s=1.5 * CAPACITY_PER_S)
    assert scale(ONE, state, busy, 3, 3, 200.0).workers == 3
    assert scale(ONE, ScaleState(service_per_s=CAPACITY_PER_S, start_s=300.0), busy, 1, 1, 200.0).workers > 3


def test_workers_leave_one_at_a_time_and_not_before_the_former_is_gone() -> None:
    first = settled(ONE, 5, 800.0)
    assert first.workers == 4
    draining = scale(ONE, first.state, load(4, per_s=800.0), 4, 5, 1_260.0)
    assert draining.workers == 4
    gone = scale(ONE, draining.state, load(4, per_s=800.0), 4, 4, 1_320.0)
    assert gone.workers == 3


def test_failed_launches_do_not_raise_the_number() -> None:
    state = ScaleState(starts=(0.0,), start_s=300.0, service_per_s=CAPACITY_PER_S)
    backlog = load(0, service=3_000 * CAPACITY_PER_S, per_s=0.5 * CAPACITY_PER_S)
    assert scale(ONE, state, backlog, 1, 0, 601.0).workers == 1
    assert scale(ONE, state, backlog, 1, 0, 599.0).workers > 1


def test_an_interrupted_worker_counts_as_starting() -> None:
    before = settled(ONE, 4, 2_900.0)
    after = scale(ONE, before.state, load(3, per_s=2_900.0), 4, 4, 1_260.0)
    assert after.workers == 4
    assert after.state.starts == (1_260.0,)


def test_a_longer_start_up_replaces_the_expected_one_and_a_shorter_one_lowers_it() -> None:
    state = ScaleState(starts=(0.0,), start_s=300.0, service_per_s=CAPACITY_PER_S)
    assert scale(ONE, state, load(1, per_s=900.0), 1, 1, 500.0).state.start_s == 500.0
    assert scale(ONE, state, load(1, per_s=900.0), 1, 1, 100.0).state.start_s == pytest.approx(240.0)


def test_bounds_that_changed_apply() -> None:
    assert scale(ScaleSettings(workers_min=3, workers_max=5), ScaleState(), IDLE, 1, 1, 0.0).workers == 3
    narrow = ScaleSettings(workers_min=1, workers_max=2)
    assert settled(narrow, 5, 9_000.0).workers == 4


WORLDS = {
    "fast": World((80, 100)),
    "slow": World((540, 660)),
    "failing": World((90, 600), fails=0.33, interrupted_per_hour=0.5),
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_day_is_followed_without_flapping_or_loss(name: str) -> None:
    world, random = WORLDS[name], Random(1)
    played = arrivals(day(10), random)
    figures = Pool(ScaleSettings(workers_min=1, workers_max=20), world, 1).run(played, after_s=3_600)
    assert figures.served == pytest.approx(figures.arrived)
    assert figures.turns <= (9 if world.interrupted_per_hour else 1)
    assert figures.late_service < 0.005 * figures.arrived
    best_s = oracle_worker_s([*played, *[0.0] * 3_600], CAPACITY_PER_S, sum(world.start_s) / 2, 1)
    assert 1.0 < figures.worker_s / best_s < 1.35
