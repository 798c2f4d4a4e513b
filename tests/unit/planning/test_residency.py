"""What workers load if no plan helps, and how long they keep their models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.policies.planning.fleet import PATIENCE_S, fallback_models, held_s
from tests.support.planning.fleets import NOW, worker

LATER = NOW + PATIENCE_S


def test_a_missing_model_waits_for_a_plan_and_not_longer() -> None:
    workers = [worker("v"), worker("w", "b")]
    assert fallback_models({"c": NOW}, workers, LATER - 0.1) == {}
    assert fallback_models({"c": NOW}, workers, LATER) == {"v": "c"}
    assert fallback_models({"a": NOW, "c": NOW}, workers, LATER) == {"w": "c"}, "the worker that no request waits for"


def test_a_worker_whose_model_another_has_too_goes_first() -> None:
    workers = [worker("v"), worker("w", "b", loaded_at=9.0), worker("x", "b", loaded_at=5.0)]
    assert fallback_models(dict.fromkeys("abc", NOW), workers, LATER) == {"x": "c"}


def test_with_a_plan_they_begin_as_late_as_the_bound_allows() -> None:
    waiting = {"a": 0.0, "b": NOW}
    bound_s, expected_s = 2 * (10.0 + 30.0 + 2.0), 4.0
    begins_s = bound_s - expected_s - 2.0
    for early_s, models in ((0.1, {}), (0.0, {"w": "b"})):
        at = NOW + begins_s - early_s
        assert fallback_models(waiting, [worker()], at, expected_drain_s=expected_s, planned={}) == models


def test_with_a_plan_the_second_of_two_models_counts_the_turn_of_the_first() -> None:
    waiting = {"b": NOW - 40.0, "c": NOW - 50.0}
    bound_s, turn_s = 2 * (10.0 + 30.0 + 2.0), 4.0 + 2.0
    begins_s = bound_s - 40.0 - (turn_s + 10.0 + turn_s)
    assert begins_s < bound_s - 50.0 - turn_s, "the first alone could begin later"
    for early_s, models in ((0.1, {}), (0.0, {"w": "c"})):
        at = NOW + begins_s - early_s
        assert fallback_models(waiting, [worker(models="bc")], at, expected_drain_s=4.0, planned={}) == models


def test_the_bound_counts_the_turn_of_a_model_that_runs_and_its_long_swap() -> None:
    """The worker serves a, which it must load again after b, and that took 40 s: so long and as long a residency more.
    A worker that serves nothing leaves as soon as the 42 s of b alone need it."""
    busy = replace(worker(loaded_at=NOW - 100.0), running=5, last_swap_s=40.0)
    bound_s, expected_s = (10.0 + 30.0 + 2.0) + (40.0 + 40.0), 4.0
    begins_s = bound_s - expected_s - 2.0
    for early_s, models in ((0.1, {}), (0.0, {"w": "b"})):
        at = NOW + begins_s - early_s
        assert fallback_models({"b": NOW}, [busy], at, expected_drain_s=expected_s, planned={}) == models
    quiet = replace(busy, running=0)
    assert fallback_models({"b": NOW}, [quiet], NOW + 42.0 - 6.0, expected_drain_s=expected_s, planned={}) == {"w": "b"}


def test_a_worker_is_not_kept_from_the_swap_that_it_is_kept_for() -> None:
    """b has waited too long, and the worker may not swap for the bound yet, as its model is new. If the plan gives it b
    the plan's shorter rest decides; for another model it is kept."""
    young = worker(loaded_at=NOW - 1.0, swap_s=15.0)
    overdue = {"b": NOW - 1e6}
    for planned, kept in (({}, {"w": "a"}), ({"w": "c"}, {"w": "a"}), ({"w": "b"}, {})):
        assert fallback_models(overdue, [young], NOW, expected_drain_s=4.0, planned=planned) == kept


def test_the_model_that_waits_longest_is_the_first() -> None:
    waiting = {"b": NOW + 1.0, "c": NOW}
    assert fallback_models(waiting, [worker(models="bc")], NOW + 11.0) == {"w": "c"}


def test_without_a_plan_a_worker_serves_as_long_as_its_last_swap_took() -> None:
    """And for 10 s while requests wait. With a plan the bound on waiting counts on the 10 s alone."""
    waiting = {"a": NOW, "b": NOW - 1e6}
    for rested_s, last_swap_s, model in ((24.0, 25.0, "a"), (25.0, 25.0, "b"), (9.0, 2.0, "a"), (10.0, 2.0, "b")):
        swapped = replace(worker(loaded_at=NOW - rested_s, swap_s=1.0), last_swap_s=last_swap_s)
        assert fallback_models(waiting, [swapped], NOW) == {"w": model}
    swapped = replace(worker(loaded_at=NOW - 12.0, swap_s=1.0), last_swap_s=25.0)
    assert fallback_models(waiting, [swapped], NOW, expected_drain_s=4.0, planned={}) == {"w": "b"}


def test_without_a_plan_the_worker_that_loads_the_model_soonest_is_the_first() -> None:
    """A drain of 20 s is longer than the rest of 4 s and a drain of 2 s."""
    ready = replace(worker("v", "a"), free_s=20.0)
    resting = replace(worker("w", "d", loaded_at=NOW - 6.0), free_s=2.0)
    waiting = {"a": NOW, "d": NOW, "c": NOW - 1e6}
    assert fallback_models(waiting, [ready, resting], NOW) == {"w": "d"}
    assert fallback_models(waiting, [ready, resting], NOW, expected_drain_s=4.0, planned={}) == {"v": "c"}


def test_nothing_is_loaded_that_is_loaded_or_fits_nowhere() -> None:
    assert fallback_models({"a": 0.0, "huge": 0.0}, [worker()], NOW) == {}
    assert fallback_models({"b": 0.0}, [replace(worker(), swap_s={"b": float("inf")})], NOW) == {}
    assert fallback_models({"b": 0.0}, [], NOW) == {}
    assert fallback_models({}, [worker()], NOW) == {}


def test_a_worker_keeps_its_model_first() -> None:
    young = worker(loaded_at=NOW - 9.0, swap_s=1.0)
    assert fallback_models({"a": 0.0, "b": 0.0}, [young], NOW) == {"w": "a"}, "it may not swap to a third model"
    assert fallback_models({"b": 0.0}, [young], NOW) == {"w": "b"}, "idle: a swap time is enough"


@pytest.mark.parametrize(
    ("loaded", "loaded_at", "is_waited_for", "held"),
    [
        ("a", NOW - 4.0, True, 6.0),
        ("a", NOW - 0.25, False, 0.75),
        ("a", NOW - 4.0, False, 0.0),
        ("a", NOW - 60.0, True, 0.0),
        ("b", NOW, True, 0.0),
        ("", NOW, False, 0.0),
        ("a", NOW + 2.0, True, 12.0),
        ("a", NOW + 1e6, True, 0.0),
    ],
)
def test_how_long_a_worker_is_held(loaded: str, loaded_at: float, is_waited_for: bool, held: float) -> None:
    assert held_s(worker(loaded=loaded, loaded_at=loaded_at, swap_s=1.0), "b", NOW, is_waited_for) == held


def test_without_a_plan_the_only_worker_of_a_model_in_use_keeps_it_until_the_bound() -> None:
    """c waits, v serves a with all slots, w has just loaded b. v may swap now and w in 10 s: w is taken, and d waits
    for it too. Once c has waited for ceil(3 / 2) (10 + 30 + 2) s, v is taken."""
    busy = replace(worker("v", models="bcd"), running=8)
    resting = worker("w", "b", models="acd", loaded_at=NOW)
    bound_s = 2 * (10.0 + 30.0 + 2.0)
    waiting = {"a": NOW, "b": NOW, "c": NOW - bound_s + 0.1}
    assert fallback_models(waiting, [busy, resting], NOW) == {"w": "b"}
    assert fallback_models(waiting | {"c": NOW - 5.0, "d": NOW - 4.0}, [busy, resting], NOW) == {"w": "b"}
    assert fallback_models(waiting | {"c": NOW - bound_s}, [busy, resting], NOW) == {"v": "c"}
    assert fallback_models(waiting, [replace(busy, running=0), resting], NOW) == {"v": "c"}
    unfit = {"a": NOW, "c": NOW - bound_s / 2, "y": NOW, "z": NOW}
    assert fallback_models(unfit, [busy, resting], NOW) == {"v": "c"}, "what fits no worker takes no turn"
    assert fallback_models(waiting, [busy, replace(resting, loaded="a"), worker("x", loaded_at=NOW)], NOW) == {"v": "c"}


def test_with_a_plan_a_worker_without_waiting_requests_goes_before_the_only_one_of_a_model_in_use() -> None:
    """Its rest is not over. But the other worker would have to come back: two swaps for one."""
    busy = replace(worker("v", "a", loaded_at=NOW - 100.0, swap_s=50.0), running=5)
    resting = replace(worker("w", "b", loaded_at=NOW - 1.0, swap_s=50.0), running=2, last_swap_s=60.0)
    waiting = {"a": NOW, "c": NOW - 200.0}
    assert fallback_models(waiting, [busy, resting], NOW, planned={}) == {"w": "c"}
    assert fallback_models({**waiting, "b": NOW}, [busy, resting], NOW, planned={}) == {"v": "c"}, "b is needed too"
    two_busy = replace(busy, name="x")
    assert fallback_models(waiting, [busy, resting, two_busy], NOW, planned={}) == {"v": "c"}, "a has another worker"
    assert fallback_models(waiting, [busy, replace(resting, running=3)], NOW, planned={}) == {"v": "c"}, "w is busy too"
    swapping = replace(resting, loaded_at=NOW)
    assert fallback_models(waiting, [busy, swapping], NOW, planned={}) == {"v": "c"}
