"""What the planner plans, request groups that wait and the workers that could serve them, and what a plan costs. Pure.

Times are in seconds from now. Source: QLM (SoCC 2024), sections 4 and 7. A plan gives each worker a virtual queue, an
order of groups; each group is in one queue. A worker serves one group after the other. If the next group needs another
model than the one that is loaded, the worker swaps first.

The cost of a plan is the lateness of entitled work, then of other work, then the time for swaps. QLM (section 7,
equations 6 to 13) minimises the sum of `waiting time - SLO` over all positions of all queues. Taken literally, a
request that is served early makes up for one that is late; equation 10 multiplies two decision variables, so the
program is not linear; and equation 12 has no solution under overload. Here only lateness costs, for each request of a
group, and no plan is forbidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Requests that are planned together. `seconds`: how long each kind of worker takes to serve them all; a kind that
    is absent cannot serve the model. `due_s`: when the group should be served; below 0 if it is late already.

    `is_entitled`: the work is within its tenant's share of the fleet (entitlement.py). Its lateness counts before any
    lateness of other work. `weight`: of a second of a request's lateness, beside groups that are equally entitled.

    Raises ValueError for a number that is impossible.
    """

    name: str
    model: str
    requests: int
    due_s: float
    seconds: Mapping[str, float]
    is_entitled: bool = True
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"group {self.name!r} has {self.requests} requests; it needs at least one")
        if not isfinite(self.due_s):
            raise ValueError(f"group {self.name!r} is due at {self.due_s!r}; a finite time is needed")
        if not all(isfinite(each) and each >= 0 for each in (self.weight, *self.seconds.values())):
            raise ValueError(f"group {self.name!r} has a weight or a service time that is negative or not finite")


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """A worker. `kind`: workers of one kind serve equally fast. `loaded`: its model, "" if it has none. `free_s`: when
    the requests that run now have ended. `swap_s`: how long it takes to make each model the loaded one; a model that is
    absent does not fit. `held_s`: the earliest start of a swap to each model (fleet.py); 0 if absent.

    Raises ValueError for a time that is negative or not finite.
    """

    name: str
    kind: str
    loaded: str
    swap_s: Mapping[str, float]
    free_s: float = 0.0
    held_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = (self.free_s, *self.swap_s.values(), *self.held_s.values())
        if not all(isfinite(each) and each >= 0 for each in times):
            raise ValueError(f"worker {self.name!r} has a time that is negative or not finite")


@dataclass(slots=True)
class Problem:
    """Groups and workers by number, as lists: the planner evaluates a queue some hundred thousand times a second.

    `weights`: the cost of a second of lateness. `unservable`: groups that no worker can serve; no plan has them.
    """

    groups: Sequence[WaitingGroup]
    workers: Sequence[PlannedWorker]
    models: list[str] = field(init=False)
    model_of: list[int] = field(init=False)
    due_s: list[float] = field(init=False)
    weights: list[float] = field(init=False)
    seconds_on: list[list[float]] = field(init=False)
    """The seconds to serve a group, by worker, then by group; infinite if the worker cannot serve the group."""
    swap_s_on: list[list[float]] = field(init=False)
    """The seconds of a swap to a model, by worker, then by model; infinite if the model does not fit."""
    held_s_on: list[list[float]] = field(init=False)
    """The earliest start of a swap to a model, by worker, then by model."""
    loaded_on: list[int] = field(init=False)
    """The number of the worker's model; -1 for none, or one that no group needs."""
    free_s: list[float] = field(init=False)
    servable: list[int] = field(init=False)
    unservable: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.models = sorted({group.model for group in self.groups})
        number = {model: at for at, model in enumerate(self.models)}
        self.model_of = [number[group.model] for group in self.groups]
        self.due_s = [group.due_s for group in self.groups]
        self.weights = [each.requests * each.weight * (_ENTITLED if each.is_entitled else 1.0) for each in self.groups]
        self.swap_s_on = [[worker.swap_s.get(model, inf) for model in self.models] for worker in self.workers]
        self.held_s_on = [[worker.held_s.get(model, 0.0) for model in self.models] for worker in self.workers]
        self.loaded_on = [number.get(worker.loaded, -1) for worker in self.workers]
        self.free_s = [worker.free_s for worker in self.workers]
        self.seconds_on = [self._seconds(at) for at in range(len(self.workers))]
        served = [min((seconds[at] for seconds in self.seconds_on), default=inf) for at in range(len(self.groups))]
        self.servable = [at for at, seconds in enumerate(served) if seconds < inf]
        self.unservable = [at for at, seconds in enumerate(served) if seconds == inf]

    def _seconds(self, worker: int) -> list[float]:
        """Return the seconds of each group on a worker; infinite if its model is not loaded there and does not fit."""
        kind, swap_s, loaded = self.workers[worker].kind, self.swap_s_on[worker], self.loaded_on[worker]
        return [
            group.seconds.get(kind, inf) if model == loaded or swap_s[model] < inf else inf
            for group, model in zip(self.groups, self.model_of, strict=True)
        ]


_ENTITLED = 1e6
"""A second of lateness of an entitled request costs as much as this many seconds of other requests."""
SWAP = 1e-3
"""The cost of a second of swapping: it decides only between plans of the same lateness."""


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
