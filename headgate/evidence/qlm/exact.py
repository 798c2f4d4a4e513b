"""The cheapest plan, by a dynamic programme over all sets of groups: for up to about twelve groups.

For each worker and each set of groups it keeps the pairs of (end, cost) that no other order of the set beats in both,
by the model of the last group. The sets are then divided among the workers.
"""

from __future__ import annotations

from math import inf

from dispatcher.policies.planning.problem import SWAP, Problem

Front = list[tuple[float, float]]
"""Pairs of (end in seconds, cost), by rising end and falling cost."""


def cheapest_cost(problem: Problem) -> float:
    """Return the weighted cost of the best plan (problem.py, `queue_cost`)."""
    full = (1 << len(problem.servable)) - 1
    best = [0.0 if not groups else inf for groups in range(full + 1)]
    for worker in range(len(problem.workers)):
        alone = _cost_of_sets(problem, worker)
        best = [_divide(best, alone, groups) for groups in range(full + 1)]
    return best[full]


def _divide(before: list[float], alone: list[float], groups: int) -> float:
    """Return the least cost if this worker serves some of the groups and the workers before it the others."""
    found, mine = before[groups], groups
    while mine:
        found = min(found, alone[mine] + before[groups ^ mine])
        mine = (mine - 1) & groups
    return found


def _cost_of_sets(problem: Problem, worker: int) -> list[float]:
    """Return, for each set of groups, the least cost if this worker serves it alone."""
    groups, models = problem.servable, len(problem.models)
    fronts: list[list[Front]] = [[[] for _ in range(models)] for _ in range(1 << len(groups))]
    costs = [0.0]
    for chosen in range(1, 1 << len(groups)):
        for bit, group in enumerate(groups):
            if chosen & (1 << bit):
                model = problem.model_of[group]
                before = chosen ^ (1 << bit)
                fronts[chosen][model] += _after(problem, worker, fronts[before] if before else None, group)
        fronts[chosen] = [_drop_dominated(front) for front in fronts[chosen]]
        costs.append(min((front[-1][1] for front in fronts[chosen] if front), default=inf))
    return costs


def _after(problem: Problem, worker: int, before: list[Front] | None, group: int) -> Front:
    """Return the pairs with `group` as the last one. `before` is None for the worker's state at the start."""
    model = problem.model_of[group]
    swap_s, held_s = problem.swap_s_on[worker][model], problem.held_s_on[worker][model]
    starts = [(problem.loaded_on[worker], problem.free_s[worker], 0.0)]
    if before is not None:
        starts = [(model_before, end, cost) for model_before, front in enumerate(before) for end, cost in front]
    found = []
    for model_before, end, cost in starts:
        swap = swap_s if model != model_before else 0.0
        began = max(end, held_s) if model != model_before else end
        now = began + swap + problem.seconds_on[worker][group]
        late = max(0.0, now - problem.due_s[group])
        if now < inf:
            found.append((now, cost + SWAP * swap + problem.weights[group] * late))
    return found


def _drop_dominated(pairs: Front) -> Front:
    kept: Front = []
    for end, cost in sorted(pairs):
        if not kept or cost < kept[-1][1]:
            kept.append((end, cost))
    return kept
