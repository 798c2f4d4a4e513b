"""QLM's mixed-integer program (SoCC 2024, section 7, equations 6 to 13), restated and solved with HiGHS.

x[g, i, j] is 1 if group i is at position j of worker g's queue. What is restated, and why:

- Equation 6 fills every position of every queue, with empty groups where there are too few. Here a position has at most
  one group, and no group stands behind an empty position: fewer variables, the same queues.
- Equations 7 and 8 make the model and the due time of a position a weighted sum of numbers. Here the model of a
  position is a sum of x for each model, which is 0 or 1.
- Equation 9, "the model differs from the one before", needs big-M terms for numbers. With the sums it is linear:
  swap[g, m, j] >= model[g, m, j] - model[g, m, j - 1]. The minimum makes it an equality.
- Equation 10 multiplies two variables, t[g, k] and x[g, i, j]: a quadratic constraint, which no linear solver takes.
  Here the end of a position is that of the position before, and the swap, and the service: linear, and exact.
- Equation 11 is a reward for groups that are early, which pays for others that are late. Here p[i] >= 0, and p[i] >=
  end - due where x[g, i, j] is 1, by big M; a second of p[i] costs the weight of the group.
- Equation 12 allows no late group: under overload the program has no solution. Here it is left out.
- Equation 13 lacks the swaps. They cost SWAP a second, as in problem.py.
"""

from __future__ import annotations

from itertools import product
from math import inf

from dispatcher.policies.planning.problem import SWAP, Problem

Terms = dict[int, float]


class _Program:
    """Variables by number, and constraints `low <= sum of terms <= high`."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.highs: list[float] = []
        self.integral: list[int] = []
        self.rows: list[tuple[float, Terms, float]] = []

    def variable(self, cost: float = 0.0, high: float = inf, is_integral: bool = False) -> int:
        self.costs.append(cost)
        self.highs.append(high)
        self.integral.append(int(is_integral))
        return len(self.costs) - 1

    def require(self, low: float, terms: Terms, high: float = inf) -> None:
        self.rows.append((low, terms, high))

    def minimum(self) -> float:
        """Return the least cost. Raises ValueError if the solver proves none."""
        import numpy as np  # here: scipy takes seconds, and most tests that are collected beside these need none
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [(row, at, value) for row, (_, terms, _) in enumerate(self.rows) for at, value in terms.items()]
        rows, columns, values = (np.array(each) for each in zip(*entries, strict=True))
        matrix = csr_array((values, (rows, columns)), shape=(len(self.rows), len(self.costs)))
        limits = LinearConstraint(matrix, [low for low, _, _ in self.rows], [high for _, _, high in self.rows])
        bounds = Bounds(0.0, np.array(self.highs))
        found = milp(self.costs, constraints=limits, bounds=bounds, integrality=self.integral)
        if not found.success:
            raise ValueError(f"HiGHS found no optimum: {found.message}")
        return float(found.fun)


def least_cost(problem: Problem) -> float:
    """Return the weighted cost of the best plan, as exact.py does. For up to about six groups."""
    program, groups = _Program(), problem.servable
    places = [
        (worker, group, place)
        for worker, group, place in product(range(len(problem.workers)), groups, range(len(groups)))
        if problem.seconds_on[worker][group] < inf
    ]
    at = {each: program.variable(high=1.0, is_integral=True) for each in places}
    late = {group: program.variable(problem.weights[group]) for group in groups}
    for group in groups:
        program.require(1.0, {at[each]: 1.0 for each in places if each[1] == group}, 1.0)
    longest_s = _longest_s(problem)
    for worker in range(len(problem.workers)):
        before_end = program.variable(high=problem.free_s[worker])
        program.require(problem.free_s[worker], {before_end: 1.0})
        before: Terms = {}
        for place in range(len(groups)):
            here = {group: at[worker, group, place] for group in groups if (worker, group, place) in at}
            program.require(-inf, dict.fromkeys(here.values(), 1.0), 1.0)
            if place:
                program.require(0.0, before | dict.fromkeys(here.values(), -1.0))
            swaps = _swaps(program, problem, worker, place, at)
            before_end = _end(program, problem, worker, before_end, here, swaps)
            for group, x in here.items():
                program.require(-problem.due_s[group] - longest_s, {late[group]: 1.0, before_end: -1.0, x: -longest_s})
            before = dict.fromkeys(here.values(), 1.0)
    return program.minimum()


def _swaps(
    program: _Program, problem: Problem, worker: int, place: int, at: dict[tuple[int, int, int], int]
) -> dict[int, int]:
    """Return, by model, the variables that are 1 if the worker swaps to it for this place."""
    swaps = {}
    for model, swap_s in enumerate(problem.swap_s_on[worker]):
        same = [group for group in problem.servable if problem.model_of[group] == model]
        here = {at[worker, group, place]: 1.0 for group in same if (worker, group, place) in at}
        if here:
            swaps[model] = program.variable(SWAP * swap_s if swap_s < inf else 0.0, high=1.0)
            kept = {at[worker, group, place - 1]: 1.0 for group in same if place}
            is_loaded = 1.0 if not place and problem.loaded_on[worker] == model else 0.0
            program.require(-is_loaded, {swaps[model]: 1.0} | kept | dict.fromkeys(here, -1.0))
    return swaps


def _end(
    program: _Program, problem: Problem, worker: int, before: int, here: dict[int, int], swaps: dict[int, int]
) -> int:
    """Return the variable of a place's end: after the place before it, and after the time that a swap is held."""
    end, swap_s, held_s = program.variable(), problem.swap_s_on[worker], problem.held_s_on[worker]
    service = {x: -problem.seconds_on[worker][group] for group, x in here.items()}
    program.require(
        0.0, {end: 1.0, before: -1.0} | service | {x: -_finite(swap_s[model]) for model, x in swaps.items()}
    )
    held = {x: -_finite(held_s[model] + swap_s[model]) for model, x in swaps.items()}
    program.require(0.0, {end: 1.0} | service | held)
    return end


def _finite(seconds: float) -> float:
    return seconds if seconds < inf else 0.0


def _longest_s(problem: Problem) -> float:
    """Return a time after every end and far enough after every due time: the big M."""
    served = sum(max(_finite(each[group]) for each in problem.seconds_on) for group in problem.servable)
    swap_s = max((_finite(each) for worker in problem.swap_s_on for each in worker), default=0.0)
    held_s = max((each for worker in problem.held_s_on for each in worker), default=0.0)
    first_s = max(0.0, *(-problem.due_s[group] for group in problem.servable))
    return max(problem.free_s) + held_s + served + len(problem.servable) * swap_s + first_s
