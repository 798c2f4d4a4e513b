"""Keeps a worker's model unless a swap pays: hysteresis. Pure.

A plan is made every few seconds from estimates, and a swap stops a worker. So the first swap of a queue happens only if
it lowers the objective by more than it costs the queue:

    cost(loaded model first) - cost(as planned) > cost(as planned) - cost(as planned, with the first swap in no time)

Otherwise the queue's groups of the loaded model go first, in their order. A queue without such groups stays: its worker
would be idle. The rest of the running batch is in all three costs, as the time at which the worker is free.
"""

from __future__ import annotations

from dispatcher.policies.planning.costs import Queue, queue_cost
from dispatcher.policies.planning.problem import Problem


def steady(problem: Problem, queues: list[Queue]) -> list[Queue]:
    """Return the queues without first swaps that do not pay. `queues` is not changed."""
    return [_steady_queue(problem, worker, queue) for worker, queue in enumerate(queues)]


def _steady_queue(problem: Problem, worker: int, queue: Queue) -> Queue:
    loaded, model_of = problem.loaded_on[worker], problem.model_of
    own = [group for group in queue if model_of[group] == loaded]
    if not own or model_of[queue[0]] == loaded:
        return list(queue)
    kept = own + [group for group in queue if model_of[group] != loaded]
    as_planned = queue_cost(problem, worker, queue)
    fall = queue_cost(problem, worker, kept) - as_planned
    return list(queue) if fall > as_planned - _cost_after_swap(problem, worker, queue) else kept


def _cost_after_swap(problem: Problem, worker: int, queue: Queue) -> float:
    """Return the queue's cost if its first swap took no time."""
    before = problem.loaded_on[worker]
    problem.loaded_on[worker] = problem.model_of[queue[0]]
    cost = queue_cost(problem, worker, queue)
    problem.loaded_on[worker] = before
    return cost
