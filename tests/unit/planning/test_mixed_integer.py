"""QLM's mixed-integer program, restated, agrees with the exact dynamic programme."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dispatcher.policies.planning.problem import PlannedWorker, Problem, WaitingGroup
from headgate.evidence.qlm.exact import cheapest_cost
from headgate.evidence.qlm.problems import small
from tests.support.planning.mixed_integer import least_cost


def first_groups(seed: int, count: int) -> Problem:
    """Return a small instance of so many groups, as much overloaded as the larger one, and with swaps held."""
    problem, random = small(seed), Random(seed)
    part = count / len(problem.groups)
    groups = [replace(each, due_s=each.due_s * part, is_entitled=False) for each in problem.groups[:count]]
    workers = [
        replace(each, held_s={model: random.choice([0.0, 20.0]) for model in each.swap_s}) for each in problem.workers
    ]
    return Problem(groups, workers)


@pytest.mark.parametrize(("seed", "count"), [(0, 3), (1, 4), (2, 4), (3, 5), (4, 5), (5, 6), (6, 6)])
def test_it_agrees_with_the_dynamic_programme(seed: int, count: int) -> None:
    problem = first_groups(seed, count)
    assert least_cost(problem) == pytest.approx(cheapest_cost(problem), rel=2e-4, abs=1e-6)


def test_it_has_a_solution_under_overload_and_an_early_group_pays_for_no_late_one() -> None:
    early = WaitingGroup("early", "m", 100, 1000.0, {"gpu": 5.0}, is_entitled=False)
    late = WaitingGroup("late", "m", 1, -7.0, {"gpu": 5.0}, is_entitled=False)
    problem = Problem([early, late], [PlannedWorker("w", "gpu", "m", {"m": 2.0}, 1.0)])
    assert least_cost(problem) == pytest.approx(5.0 + 1.0 + 7.0)


def test_a_group_that_does_not_fit_a_worker_is_on_another() -> None:
    groups = [WaitingGroup(name, name, 2, 0.0, {"gpu": 3.0}, is_entitled=False) for name in "ab"]
    workers = [PlannedWorker("v", "gpu", "a", {"a": 0.0}), PlannedWorker("w", "gpu", "", {"a": 1.0, "b": 4.0})]
    problem = Problem(groups, workers)
    assert least_cost(problem) == pytest.approx(cheapest_cost(problem), abs=1e-6)
