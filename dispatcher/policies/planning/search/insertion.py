"""The first plan: groups enter the queues one after the other, the one that is due first at the cheapest place. Pure.

For each group only some queues are tried: NEAR queues with its model that end first with the group, and SOONEST queues
of any that do. Within a queue only places where the model changes are tried, those beside groups of its model, and the
end: elsewhere the group would cost two swaps more. With G groups and queues of length L this takes O(G (NEAR + SOONEST)
L²).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from math import inf

from dispatcher.policies.planning.problem import Problem
from dispatcher.policies.planning.search.costs import Queue, ends_s, queue_cost

NEAR = 6
SOONEST = 3


def insert_by_due_time(problem: Problem, queues: list[Queue] | None = None) -> list[Queue]:
    """Return a queue for each worker, with every servable group in one of them.

    `queues`: a plan to begin with, such as the last one; groups that it lacks are inserted. It is not changed.
    """
    made = [list(queue) for queue in queues] if queues is not None else [[] for _ in problem.workers]
    inserting = _Insertion(problem, made)
    placed = {group for queue in made for group in queue}
    for group in sorted(problem.servable, key=lambda each: (problem.due_s[each], each)):
        if group not in placed:
            inserting.insert(group)
    return made


class _Insertion:
    def __init__(self, problem: Problem, queues: list[Queue]) -> None:
        self.problem = problem
        self.queues = queues
        self.costs = [queue_cost(problem, worker, queue) for worker, queue in enumerate(queues)]
        self.end_s = [self._end_s(worker) for worker in range(len(queues))]
        self.with_model: list[set[int]] = [set() for _ in problem.models]
        for worker, queue in enumerate(queues):
            for model in {problem.loaded_on[worker], *(problem.model_of[group] for group in queue)} - {-1}:
                self.with_model[model].add(worker)

    def insert(self, group: int) -> None:
        """Put the group where it costs least; at equal cost, where it ends first."""
        best: tuple[float, float, int, int] = inf, inf, -1, -1
        for worker in self._candidates(group):
            queue = self.queues[worker]
            for place in self._places(worker, group):
                tried = [*queue[:place], group, *queue[place:]]
                added = queue_cost(self.problem, worker, tried) - self.costs[worker]
                best = min(best, (added, self.end_s[worker], worker, place))
        _, _, worker, place = best
        self.queues[worker].insert(place, group)
        self.costs[worker] = queue_cost(self.problem, worker, self.queues[worker])
        self.end_s[worker] = self._end_s(worker)
        self.with_model[self.problem.model_of[group]].add(worker)

    def _candidates(self, group: int) -> list[int]:
        """Return the queues to try, each once."""
        can_serve = [at for at in range(len(self.queues)) if self.problem.seconds_on[at][group] < inf]
        with_model = self.with_model[self.problem.model_of[group]]
        seconds_on = self.problem.seconds_on

        def end_s(worker: int) -> float:
            return self.end_s[worker] + seconds_on[worker][group]

        near = nsmallest(NEAR, (at for at in can_serve if at in with_model), key=end_s)
        soonest = nsmallest(SOONEST, can_serve, key=end_s)
        return list(dict.fromkeys([*near, *soonest]))

    def _places(self, worker: int, group: int) -> Iterator[int]:
        """Yield the places at which the model changes, those beside groups of the same model, and the end."""
        model, queue = self.problem.model_of[group], self.queues[worker]
        before = self.problem.loaded_on[worker]
        for place, other in enumerate(queue):
            following = self.problem.model_of[other]
            if before != following or following == model:
                yield place
            before = following
        yield len(queue)

    def _end_s(self, worker: int) -> float:
        queue = self.queues[worker]
        return ends_s(self.problem, worker, queue)[-1] if queue else self.problem.free_s[worker]
