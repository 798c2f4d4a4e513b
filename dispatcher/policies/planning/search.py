"""The search for a plan: a first one by insertion, then simulated annealing with a budget of moves. Pure.

It is the same for the same seed. Insertion: groups enter the queues one after the other, the one that is due first at
the cheapest place. For each group only some queues are tried: _NEAR queues with its model that end first with the
group, and _SOONEST queues of any that do. Within a queue only places where the model changes are tried, those beside
groups of its model, and the end: elsewhere the group would cost two swaps more. With G groups and queues of length L
this takes O(G (_NEAR + _SOONEST) L²).

Annealing: a move takes a group, or a run of groups of one model, to another place, or exchanges two groups. It changes
at most two queues, so it costs O(L) for queues of length L. Worse plans are accepted with the probability exp(-added
cost / T). T falls from ten times the mean cost of a group to a hundredth of that, in up to eight rounds, each from the
best plan so far: a single round ends in a plan from which one move leads to none that is better. Most moves begin at a
queue with late work. Among many queues, half of the moves go to workers with the group's model, and half to the place
by due time; if there are few moves for each group, T falls once, from the mean cost.

QLM solves a mixed-integer program (section 7), which took minutes at eight groups here, and scales a group's size to
keep the program small (Figure 19). This takes a thousand groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, inf
from random import Random

from dispatcher.policies.planning.problem import SWAP, Problem, Queue, ends_s, queue_cost

_NEAR = 6
_SOONEST = 3


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
        seconds_on = self.problem.seconds_on
        ends_s = [end_s + seconds[group] for end_s, seconds in zip(self.end_s, seconds_on, strict=True)]
        can_serve = [at for at, end_s in enumerate(ends_s) if end_s < inf]
        can_serve.sort(key=ends_s.__getitem__)
        with_model = self.with_model[self.problem.model_of[group]]
        near = [at for at in can_serve if at in with_model][:_NEAR]
        return list(dict.fromkeys([*near, *can_serve[:_SOONEST]]))

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


_START_FACTOR, _START_FACTOR_HURRIED = 10.0, 1.0
_END_FRACTION = 1e-2
_ROUNDS_MAX = 8
_ROUND_MOVES = 150
"""A round has at least this many moves for each group."""
_UNHURRIED_MOVES = 1_000
"""With fewer moves for each group, and many queues, there is one round, which begins less hot: a hot one does not cool
down in time."""
_TARDY_SHARE = 0.6
"""The part of the moves that begin at a queue with lateness, if there is one."""
_NEAR_SHARE = 0.5
"""The part of the moves to a queue of a worker that has the model now, and to the place by due time. Among _NEAR queues
or fewer all places are tried often enough."""
_KEEP_EVERY = 64
"""The best plan is kept when it is seen at one of these moves: a copy takes as long as several moves."""


def anneal(problem: Problem, queues: list[Queue], moves: int, seed: int = 0) -> list[Queue]:
    """Return a plan that costs at most as much as `queues`, which is not changed. `moves`: the changes to try."""
    return _Annealing(problem, queues, Random(seed)).run(moves)


class _Annealing:
    def __init__(self, problem: Problem, queues: list[Queue], random: Random) -> None:
        self.problem = problem
        self.queues = [list(queue) for queue in queues]
        self.costs = [queue_cost(problem, worker, queue) for worker, queue in enumerate(queues)]
        self.random = random.random
        self.best = [list(queue) for queue in queues]
        self.best_cost = self.cost = sum(self.costs)
        self.is_wide = len(queues) > _NEAR
        self.having: list[list[int]] = [[] for _ in problem.models]
        for worker, model in enumerate(problem.loaded_on):
            if model >= 0:
                self.having[model].append(worker)
        self.tardy: list[int] = []
        self._find_tardy()

    def run(self, moves: int) -> list[Queue]:
        groups = sum(map(len, self.queues))
        is_hurried = self.is_wide and moves < _UNHURRIED_MOVES * groups
        rounds = 1 if is_hurried else min(_ROUNDS_MAX, max(1, moves // (_ROUND_MOVES * max(1, groups))))
        factor = _START_FACTOR_HURRIED if is_hurried else _START_FACTOR
        for number in range(rounds):
            self._restore()
            if groups > 1 and self.tardy:
                self._round(factor * self.cost / groups, moves // rounds + (number < moves % rounds))
        return self.best

    def _round(self, temperature: float, moves: int) -> None:
        """Anneal once from the best plan; end early if it has no lateness."""
        factor = _END_FRACTION ** (1.0 / max(1, moves))
        for number in range(1, moves + 1):
            self._move(temperature)
            temperature *= factor
            if number % _KEEP_EVERY == 0 or number == moves:
                self._keep()
                if not self.tardy:
                    return

    def _move(self, temperature: float) -> None:
        random, queues = self.random, self.queues
        tardy = self.tardy
        first = tardy[int(random() * len(tardy))] if random() < _TARDY_SHARE else int(random() * len(queues))
        queue = queues[first]
        if not queue:
            return
        place = int(random() * len(queue))
        second = self._second(queue[place])
        kind = random()
        if second == first:
            self._move_within(first, place, int(random() * len(queue)), temperature)
        elif kind < 0.25 and queues[second]:
            self._exchange(first, place, second, int(random() * len(queues[second])), temperature)
        else:
            length = self._run_length(queue, place) if kind > 0.75 else 1
            to = self._place(queues[second], queue[place])
            self._move_to(first, place, length, second, to, temperature)

    def _second(self, group: int) -> int:
        """Return any queue, or one of a worker that has the group's model now."""
        having = self.having[self.problem.model_of[group]]
        if self.is_wide and having and self.random() < _NEAR_SHARE:
            return having[int(self.random() * len(having))]
        return int(self.random() * len(self.queues))

    def _place(self, queue: Queue, group: int) -> int:
        """Return any place of the queue, or that before the first group which is due later."""
        if not self.is_wide or self.random() >= _NEAR_SHARE:
            return int(self.random() * (len(queue) + 1))
        due_s = self.problem.due_s
        due = due_s[group]
        for place, other in enumerate(queue):
            if due_s[other] > due:
                return place
        return len(queue)

    def _move_within(self, worker: int, place: int, to: int, temperature: float) -> None:
        if place == to:
            return
        changed = list(self.queues[worker])
        changed.insert(to, changed.pop(place))
        cost = queue_cost(self.problem, worker, changed)
        if self._accepts(cost - self.costs[worker], temperature):
            self._set(worker, changed, cost)

    def _exchange(self, first: int, place: int, second: int, other: int, temperature: float) -> None:
        one, two = list(self.queues[first]), list(self.queues[second])
        one[place], two[other] = two[other], one[place]
        self._try_both(first, one, second, two, temperature)

    def _move_to(self, first: int, place: int, length: int, second: int, to: int, temperature: float) -> None:
        one, two = self.queues[first], self.queues[second]
        run = one[place : place + length]
        self._try_both(first, one[:place] + one[place + length :], second, two[:to] + run + two[to:], temperature)

    def _try_both(self, first: int, one: Queue, second: int, two: Queue, temperature: float) -> None:
        cost_one = queue_cost(self.problem, first, one)
        cost_two = queue_cost(self.problem, second, two)
        if self._accepts(cost_one + cost_two - self.costs[first] - self.costs[second], temperature):
            self._set(first, one, cost_one)
            self._set(second, two, cost_two)

    def _accepts(self, added: float, temperature: float) -> bool:
        return added <= 0.0 or (added < inf and self.random() < exp(-added / temperature))

    def _set(self, worker: int, queue: Queue, cost: float) -> None:
        self.cost += cost - self.costs[worker]
        self.queues[worker], self.costs[worker] = queue, cost

    def _run_length(self, queue: Queue, place: int) -> int:
        """Return how many groups of one model stand here in a row."""
        model_of = self.problem.model_of
        end = place + 1
        while end < len(queue) and model_of[queue[end]] == model_of[queue[place]]:
            end += 1
        return end - place

    def _keep(self) -> None:
        self._find_tardy()
        if self.cost < self.best_cost:
            self.best_cost = self.cost = sum(self.costs)
            self.best = [list(queue) for queue in self.queues]

    def _restore(self) -> None:
        """Continue from the best plan."""
        self.queues = [list(queue) for queue in self.best]
        self.costs = [queue_cost(self.problem, worker, queue) for worker, queue in enumerate(self.queues)]
        self.cost = self.best_cost = sum(self.costs)
        self._find_tardy()

    def _find_tardy(self) -> None:
        """Find the queues with lateness: their cost is more than that of all their swaps could be."""
        swaps = [SWAP * max((s for s in each if s < inf), default=0.0) for each in self.problem.swap_s_on]
        self.tardy = [at for at, cost in enumerate(self.costs) if cost > swaps[at] * len(self.queues[at])]
