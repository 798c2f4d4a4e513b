"""The cost of a plan: lateness of entitled work, then of other work, then the time for swaps. Pure.

QLM (section 7, equations 6 to 13) minimises the sum of `waiting time - SLO` over all positions of all queues. Taken
literally, a request that is served early makes up for one that is late; equation 10 multiplies two decision variables,
so the program is not linear; and equation 12 has no solution under overload. Here only lateness costs, for each request
of a group, and no plan is forbidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dispatcher.policies.planning.problem import SWAP, Problem

Queue = list[int]
"""The numbers of the groups of a worker, in the order of service."""


class PlanCost(NamedTuple):
    """Compared in this order. Lateness is in request seconds: each request counts the seconds after its group's due
    time at which the group's last request is served."""

    entitled_s: float
    surplus_s: float
    swap_s: float


def queue_cost(problem: Problem, worker: int, queue: Sequence[int]) -> float:
    """Return the weighted cost of one queue. A plan's cost is the sum over its queues."""
    model_of, due_s, weights = problem.model_of, problem.due_s, problem.weights
    seconds, swap_s, held_s = problem.seconds_on[worker], problem.swap_s_on[worker], problem.held_s_on[worker]
    now_s, loaded, cost = problem.free_s[worker], problem.loaded_on[worker], 0.0
    for group in queue:
        model = model_of[group]
        if model != loaded:
            if now_s < held_s[model]:
                now_s = held_s[model]
            now_s += swap_s[model]
            cost += SWAP * swap_s[model]
            loaded = model
        now_s += seconds[group]
        late_s = now_s - due_s[group]
        if late_s > 0.0:
            cost += weights[group] * late_s
    return cost


def ends_s(problem: Problem, worker: int, queue: Sequence[int]) -> list[float]:
    """Return when each group of the queue ends, in its order."""
    now_s, loaded, ends = problem.free_s[worker], problem.loaded_on[worker], []
    for group in queue:
        model = problem.model_of[group]
        if model != loaded:
            now_s = max(now_s, problem.held_s_on[worker][model]) + problem.swap_s_on[worker][model]
            loaded = model
        now_s += problem.seconds_on[worker][group]
        ends.append(now_s)
    return ends


def plan_cost(problem: Problem, queues: Sequence[Sequence[int]]) -> PlanCost:
    entitled_s = surplus_s = swap_s = 0.0
    for worker, queue in enumerate(queues):
        loaded = problem.loaded_on[worker]
        for group, end_s in zip(queue, ends_s(problem, worker, queue), strict=True):
            found = problem.groups[group]
            late_s = max(0.0, end_s - found.due_s) * found.requests
            entitled_s += late_s if found.is_entitled else 0.0
            surplus_s += 0.0 if found.is_entitled else late_s
            model = problem.model_of[group]
            swap_s += problem.swap_s_on[worker][model] if model != loaded else 0.0
            loaded = model
    return PlanCost(entitled_s, surplus_s, swap_s)


def late_requests(problem: Problem, queues: Sequence[Sequence[int]]) -> float:
    """Return how many requests are served after their group's due time. A group serves its requests evenly between its
    start and its end."""
    late = 0.0
    for worker, queue in enumerate(queues):
        for group, end_s in zip(queue, ends_s(problem, worker, queue), strict=True):
            found, seconds = problem.groups[group], problem.seconds_on[worker][group]
            after_s = min(max(0.0, end_s - found.due_s), seconds)
            late += found.requests * (after_s / seconds if seconds else float(end_s > found.due_s))
    return late
