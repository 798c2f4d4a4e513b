"""The decision of scaling, over random pools: bounds, single steps, no worker that work needs leaves, no flapping."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.fleet import FleetLoad
from dispatcher.operations.worker_count import ScaleSettings, ScaleState, remaining_start_s, scale
from tests.support.scaling import CAPACITY_PER_S, Pool, World

BOUNDS = st.tuples(st.integers(0, 6), st.integers(1, 20)).map(lambda pair: (min(pair), max(pair)))
STEPS = st.lists(
    st.tuples(
        st.floats(0, 30 * CAPACITY_PER_S), st.floats(0, 10_000 * CAPACITY_PER_S), st.floats(0, 1), st.floats(0, 1)
    ),
    min_size=1,
    max_size=60,
)


@given(bounds=BOUNDS, to_zero=st.booleans(), steps=STEPS)
def test_each_decision_keeps_the_bounds_and_takes_away_one_worker_at_most(
    bounds: tuple[int, int], to_zero: bool, steps: list[tuple[float, float, float, float]]
) -> None:
    config = ScaleSettings(*bounds, scale_to_zero=to_zero)
    state, desired = ScaleState(), config.floor
    last_large: list[tuple[float, int]] = []
    for number, (per_s, service, serving, running) in enumerate(steps):
        now = 60.0 * number
        ready = round(desired * serving)
        holding = round(ready * running)
        load = FleetLoad(ready, 0, holding, {"standard": round(service)}, service, per_s, CAPACITY_PER_S * (ready > 0))
        made = scale(config, state, load, desired, desired, now)
        assert config.floor <= made.workers <= config.workers_max
        assert made.workers >= desired - 1
        last_large = [(at, count) for at, count in last_large if at > now - config.hold_s] + [(now, made.needed)]
        if made.workers < desired:
            assert made.workers >= holding
            assert made.workers >= min(config.workers_max, max(count for _, count in last_large))
        elif made.workers == desired:
            assert made.needed <= desired or desired == config.workers_max
        assert len(made.state.starts) <= max(0, made.workers - ready)
        assert all(0 < each <= made.state.start_s for each in remaining_start_s(made.state, now))
        assert len(made.state.needs) <= config.hold_s / 60 + 1
        state, desired = made.state, made.workers


@settings(max_examples=25, deadline=None)
@given(
    levels=st.lists(st.floats(0, 12), min_size=1, max_size=6),
    fails=st.floats(0, 0.5),
    interrupted=st.floats(0, 1),
    start=st.tuples(st.floats(90, 600), st.floats(90, 600)).map(lambda pair: (min(pair), max(pair))),
    seed=st.integers(0, 1_000),
)
def test_all_work_is_served_and_the_pool_returns_to_zero(
    levels: list[float], fails: float, interrupted: float, start: tuple[float, float], seed: int
) -> None:
    """Each level is a quarter of an hour. The largest fleet has twice the capacity of the highest level."""
    config = ScaleSettings(workers_min=0, workers_max=24, scale_to_zero=True)
    pool = Pool(config, World(start, fails, interrupted), seed)
    played = [level * CAPACITY_PER_S for level in levels for _ in range(900)]
    figures = pool.run(played, after_s=6 * 3_600)
    assert abs(figures.served - figures.arrived) <= 1e-6 * max(1.0, figures.arrived)
    assert pool.desired == 0
    assert figures.turns <= 2 * len(levels) + 1
    assert max(figures.desired) <= config.workers_max
