"""Simple planners as baselines."""

from __future__ import annotations

from math import inf

from dispatcher.policies.planning.problem import Problem, Queue, ends_s


def _by_due_time(problem: Problem) -> list[int]:
    return sorted(problem.servable, key=lambda group: (problem.due_s[group], group))


def list_edf(problem: Problem) -> list[Queue]:
    """Earliest due time first: each group goes to the queue that ends first with it."""
    queues: list[Queue] = [[] for _ in problem.workers]
    for group in _by_due_time(problem):
        ends = [ends_s(problem, worker, [*queue, group])[-1] for worker, queue in enumerate(queues)]
        queues[min(range(len(queues)), key=ends.__getitem__)].append(group)
    return queues


def edf_in_turn(problem: Problem) -> list[Queue]:
    """Earliest due time first, the workers that the group fits in turn, whatever they have loaded."""
    queues: list[Queue] = [[] for _ in problem.workers]
    for at, group in enumerate(_by_due_time(problem)):
        able = [worker for worker in range(len(queues)) if problem.seconds_on[worker][group] < inf]
        queues[able[at % len(able)]].append(group)
    return queues
