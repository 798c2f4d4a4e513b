"""QLM's exact optimum (section 7, equations 6 to 13): how near the planner comes to it where every plan can be tried.

QLM solves its program exactly and finds it too slow for more than some groups (Figure 20). The problems here are so
small that the cost of every plan is computed. The tolerances were written down before the first run.
"""

from __future__ import annotations

from itertools import combinations, permutations
from math import inf
from statistics import fmean
from typing import NamedTuple

from dispatcher.policies.planning.problem import Problem, queue_cost
from dispatcher.policies.planning.search import anneal, insert_by_due_time
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.problems import mixed

_GROUPS, _MODELS = 6, 3
_WORKERS = (2, 3)
_SLACKS = (-0.5, -0.25, 0.0)
"""Due times as parts of the ends of a known plan, less 1: below 0 no plan may have all requests in time."""
_SEEDS = range(1, 21)
_MOVES = (0, 100, 1_000, 20_000)
"""The production's plans have up to 20,000 (planning/plan.py); the simulator's have 1,000."""
_FEW, _MANY = 1_000, 20_000
_FOUND_MIN, _EXCESS_MAX = 0.95, 0.10
_SAME = 1e-6
_COST_MIN = 1.0
"""The cost of a microsecond of one entitled request's lateness: lower costs are rounding."""


class _Job(NamedTuple):
    workers: int
    slack: float
    seed: int


@experiment("qlm-optimum", "The exact optimum", "QLM, section 7, equations 6 to 13")
def optimum(setting: Setting) -> Section:
    jobs = [_Job(workers, slack, seed) for workers in _WORKERS for slack in _SLACKS for seed in _SEEDS]
    excess = dict(zip(jobs, setting.map(measure_excess, jobs), strict=True))
    of_moves = {moves: [found[at] for found in excess.values()] for at, moves in enumerate(_MOVES)}
    return Section(
        text=(
            f"{len(jobs)} problems: {_GROUPS} groups of {_MODELS} models on 2 or 3 workers of two speeds; the due "
            "times are 50 to 100 % of the ends of a known plan. The cost is the planner's (lateness, then swaps: "
            "`dispatcher/policies/planning/problem.py`), because QLM's own objective lets early requests make up for "
            "late ones. *Excess*: the cost over that of the best of all plans, less 1.",
        ),
        tables=[
            Table("From insertion to annealing", ("moves", "optimum found", "mean excess", "greatest excess"),
                  [_row(moves, values) for moves, values in of_moves.items()]),
        ],
        checks=[
            Check(
                f"{_FEW:,} moves find the optimum in at least {_FOUND_MIN:.0%} of the problems",
                _part_found(of_moves[_FEW]) >= _FOUND_MIN,
                f"{_part_found(of_moves[_FEW]):.1%}",
                "the simulator's plans have so few moves to be quick, and moves are drawn; those that miss cost "
                f"{max(of_moves[_FEW]):.0%} more at most",
            ),
            Check(
                f"{_MANY:,} moves cost at most {_EXCESS_MAX:.0%} more than the optimum in every problem",
                max(of_moves[_MANY]) <= _EXCESS_MAX,
                f"{max(of_moves[_MANY]):.1%} at most",
            ),
        ],
    )  # fmt: skip


def _row(moves: int, values: list[float]) -> tuple[Cell, ...]:
    return f"{moves:,}", f"{_part_found(values):.1%}", f"{fmean(values):.1%}", f"{max(values):.1%}"


def _part_found(values: list[float]) -> float:
    return sum(value <= _SAME for value in values) / len(values)


def measure_excess(job: _Job) -> list[float]:
    """Return the excess of the plan after each number of moves. A job for Setting.map."""
    groups = _GROUPS // job.workers * job.workers
    problem = mixed(job.seed, groups, job.workers, _MODELS, job.slack)
    first, best = insert_by_due_time(problem), find_lowest_cost(problem)
    plans = [anneal(problem, first, moves, job.seed) if moves else first for moves in _MOVES]
    costs = [sum(queue_cost(problem, at, queue) for at, queue in enumerate(plan)) for plan in plans]
    return [(cost - best) / max(best, _COST_MIN) for cost in costs]


def find_lowest_cost(problem: Problem) -> float:
    """Return the lowest cost of any plan: every division of the groups between the workers, in every order."""
    every = frozenset(problem.servable)
    lowest = {frozenset[int](): 0.0}
    for worker in range(len(problem.workers)):
        of_worker = {part: _lowest_queue_cost(problem, worker, part) for part in _subsets(every)}
        lowest = {
            part: min(lowest.get(part - own, inf) + cost for own, cost in of_worker.items() if own <= part)
            for part in _subsets(every)
        }
    return lowest[every]


def _subsets(groups: frozenset[int]) -> list[frozenset[int]]:
    return [frozenset(part) for size in range(len(groups) + 1) for part in combinations(sorted(groups), size)]


def _lowest_queue_cost(problem: Problem, worker: int, groups: frozenset[int]) -> float:
    if any(problem.seconds_on[worker][group] == inf for group in groups):
        return inf
    return min(queue_cost(problem, worker, order) for order in permutations(sorted(groups)))
