"""Figures 19 and 20 of QLM: the size of request groups, and what a plan of a long queue costs.

The cost is in moves of the annealing, because a section of the document must not depend on the machine. One core of
this project's machines makes 110,000 to 160,000 moves a second (benchmarks/results/planner_quality.md).
"""

from __future__ import annotations

from statistics import fmean

from dispatcher.policies.planning.groups import DELTA
from dispatcher.policies.planning.problem import late_requests
from dispatcher.policies.planning.search import anneal, insert_by_due_time
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.problems import mixed
from headgate.evidence.qlm.scenes import A_MODELS, five_models, five_models_fleet, fleet, fleet_spec, percent, w_a
from headgate.simulator.simulate import simulate

_DELTAS = (1, 2, DELTA, 8)
_POINT = 0.01
_LOADS = {"five models at 0.7": 0.7, "five models at 0.4": 0.4}

_GROUPS = (100, 300, 1000)
_MOVES = (0, 200_000)
_LATE_MAX = {0: 0.015, 200_000: 0.01}
_SEEDS = (1, 2, 3)
_BATCH = 254
"""The number of requests in a batch of the profile a100-llama3-8b-chunked."""


@experiment("qlm-figure-19", "Figure 19: the size of request groups", "QLM, section 8.3, Figure 19")
def figure_19(setting: Setting) -> Section:
    scenes = {name: (five_models(load), five_models_fleet(3.0)) for name, load in _LOADS.items()}
    scenes["W_A on two workers"] = w_a(40.0), fleet(2, A_MODELS)
    jobs = [(name, delta) for name in scenes for delta in _DELTAS]
    specs = [fleet_spec(*scenes[name], "qlm", delta=delta) for name, delta in jobs]
    runs = dict(zip(jobs, setting.map(simulate, specs), strict=True))
    rows: list[tuple[Cell, ...]] = [
        (name, delta, percent(run.all.in_time), run.moves) for (name, delta), run in runs.items()
    ]
    first, *_, overload = scenes
    small, ours = runs[first, 1], runs[first, DELTA]
    return Section(
        text=(
            "A group has at most δ batches of requests. The planner is `qlm`, which moves each group a hundred times "
            "for a plan. headgate's own planner splits a tenant's groups by what is entitled, not by δ.",
        ),
        tables=[Table("In time, and moves of all plans", ("scene", "δ", "in time", "moves"), rows)],
        checks=[
            Check(
                f"{first}: δ = {DELTA} is in time within a point of δ = 1",
                ours.all.in_time >= small.all.in_time - _POINT,
                f"{percent(ours.all.in_time)} against {percent(small.all.in_time)}",
            ),
            Check(
                f"{first}: at two fifths of the cost",
                ours.moves <= 0.4 * small.moves,
                f"{ours.moves:,} moves against {small.moves:,}",
            ),
            Check(
                f"{overload}: within a point too",
                None,
                f"{percent(runs[overload, DELTA].all.in_time)} against {percent(runs[overload, 1].all.in_time)}. "
                "The fleet is overloaded, so a planner chooses who is late, and small groups let it choose better.",
            ),
        ],
    )


@experiment("qlm-figure-20", "Figure 20: the cost of a plan", "QLM, section 8.3, Figure 20")
def figure_20(setting: Setting) -> Section:
    jobs = [(groups, moves, seed) for groups in _GROUPS for moves in _MOVES for seed in _SEEDS]
    late = dict(zip(jobs, setting.map(_late, jobs), strict=True))
    means = {
        (groups, moves): fmean(late[groups, moves, seed] for seed in _SEEDS) for groups in _GROUPS for moves in _MOVES
    }
    rows: list[tuple[Cell, ...]] = [
        (groups, groups // 10, DELTA * _BATCH * groups, *(f"{100 * means[groups, moves]:.2f} %" for moves in _MOVES))
        for groups in _GROUPS
    ]
    return Section(
        text=(
            "Groups of ten models for fast and slow workers, ten groups for each worker. A plan without lateness "
            f"exists, with 8 % of slack. Late requests, the mean of {len(_SEEDS)} problems, after insertion alone and "
            f"after annealing. 200,000 moves take one to two seconds. Requests: with δ = {DELTA} and a batch of "
            f"{_BATCH}. The paper plans 400,000 requests in 5 s.",
        ),
        tables=[
            Table(
                "Late requests",
                ("groups", "workers", "requests", *(f"{moves:,} moves" for moves in _MOVES)),
                rows,
            )
        ],
        checks=[
            Check(
                f"{_GROUPS[-1]:,} groups: at most {100 * most:g} % late after {moves:,} moves",
                means[_GROUPS[-1], moves] <= most,
                f"{100 * means[_GROUPS[-1], moves]:.2f} %",
            )
            for moves, most in _LATE_MAX.items()
        ],
    )


def _late(job: tuple[int, int, int]) -> float:
    """Return the part of the requests that is late."""
    groups, moves, seed = job
    problem = mixed(seed, groups, groups // 10)
    queues = insert_by_due_time(problem)
    if moves:
        queues = anneal(problem, queues, moves)
    return late_requests(problem, queues) / sum(group.requests for group in problem.groups)
