"""QLM's scheduler: request groups in one virtual queue for each worker, planned for the backlog, without tenants.

Source: QLM (SoCC 2024), sections 4, 5 and 7. A group has requests of one model and SLO class, first come first served,
and at most δ x batch of them. Each worker pulls from the head group of its virtual queue, and swaps when the head group
needs another model. Deviations, which make it no weaker:

- The mixed-integer program is solved by insertion and annealing (policies/planning), which is as good where both end.
  Only lateness costs (planning/problem.py gives the reason).
- It plans again when requests belong to no planned group, at most every _PLAN_S seconds or when a worker is idle, and
  not only when a miss is predicted.
- A worker with an empty queue serves requests of its loaded model from the other queues.
- Groups are of one model and class, which is what the paper's k-means separates in these workloads.

It knows nothing of arrivals to come: a worker with an empty queue is given to any other model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from dispatcher.policies.planning.problem import PlannedWorker, Problem, WaitingGroup
from dispatcher.policies.planning.search import anneal, insert_by_due_time
from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Surroundings, Swap, planner
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest

_PLAN_S = 2.0
_MOVES_PER_GROUP = 100
_Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class _Group:
    key: _Key
    waiting: deque[SimRequest] = field(default_factory=deque)

    @property
    def model(self) -> str:
        return self.key[0]


@planner("qlm")
class QlmPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._queues: dict[str, deque[_Group]] = {worker.name: deque() for worker in around.workers}
        self._last: dict[_Key, _Group] = {}
        """The last planned group of each model and class, which new requests join."""
        self._unplanned: list[SimRequest] = []
        self._planned_s = -_PLAN_S
        self._size_max = {model: _batch(around, model) * around.delta for model in around.profiles}

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        group = self._last.get((request.model, request.slo_class))
        if group is not None and 0 < len(group.waiting) < self._size_max[request.model]:
            group.waiting.append(request)
        else:
            self._unplanned.append(request)

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self._unplanned.append(request)

    def next_s(self) -> float:
        return self._planned_s + _PLAN_S if self._unplanned else inf

    def actions(self, now_s: float) -> Iterator[Action]:
        if self._unplanned and (now_s >= self._planned_s + _PLAN_S or any(map(self._is_idle, self.workers))):
            self._plan(now_s)
        for worker in self.workers:
            yield from self._pull_from_queue(worker)
        for worker in self.workers:
            yield from self._pull_from_others(worker)

    def _pull_from_queue(self, worker: SimulatedWorker) -> Iterator[Action]:
        queue = self._queues[worker.name]
        while worker.target is None and queue:
            group = queue[0]
            if not group.waiting:
                queue.popleft()
            elif group.model != worker.model:
                yield Swap(worker, group.model)
            elif worker.free:
                yield Dispatch(group.waiting.popleft(), worker)
            else:
                return

    def _pull_from_others(self, worker: SimulatedWorker) -> Iterator[Action]:
        """Let a worker without a queue take requests of its model from the others' groups."""
        while worker.free and not self._queues[worker.name]:
            groups = [group for queue in self._queues.values() for group in queue if group.model == worker.model]
            group = max(groups, key=lambda group: len(group.waiting), default=None)
            if group is None or not group.waiting:
                return
            yield Dispatch(group.waiting.popleft(), worker)

    def _is_idle(self, worker: SimulatedWorker) -> bool:
        has_work = worker.running or any(group.waiting for group in self._queues[worker.name])
        return worker.target is None and not has_work

    def _plan(self, now_s: float) -> None:
        self._planned_s = now_s
        groups = self._groups()
        waiting = [self._waiting_group(str(at), group, now_s) for at, group in enumerate(groups)]
        problem = Problem(waiting, [self._planned_worker(worker, now_s) for worker in self.workers])
        first = insert_by_due_time(problem)
        moves = _MOVES_PER_GROUP * len(groups)
        self.moves += moves
        queues = anneal(problem, first, moves, self.around.seed)
        for worker, queue in zip(self.workers, queues, strict=True):
            self._queues[worker.name] = deque(groups[at] for at in queue)
        self._last = {group.key: group for group in groups}

    def _groups(self) -> list[_Group]:
        """Form the groups of all waiting requests again."""
        by_key: dict[_Key, list[SimRequest]] = {}
        planned = (request for queue in self._queues.values() for group in queue for request in group.waiting)
        for request in (*planned, *self._unplanned):
            by_key.setdefault((request.model, request.slo_class), []).append(request)
        self._unplanned = []
        groups = []
        for key in sorted(by_key):
            requests, size = sorted(by_key[key], key=lambda request: request.number), self._size_max[key[0]]
            groups += [_Group(key, deque(requests[at : at + size])) for at in range(0, len(requests), size)]
        return groups

    def _waiting_group(self, name: str, group: _Group, now_s: float) -> WaitingGroup:
        profile = self.around.profiles[group.model]
        service = len(group.waiting) * profile.service / profile.requests
        seconds = {
            kind: service / rate for (kind, model), rate in self.around.capacity_per_s.items() if model == group.model
        }
        due_s = min(request.due_s for request in group.waiting) - now_s
        return WaitingGroup(name, group.model, len(group.waiting), due_s, seconds)

    def _planned_worker(self, worker: SimulatedWorker, now_s: float) -> PlannedWorker:
        """Return the worker for the planner. A swap also costs the time that a batch needs to end."""
        swap_s = {
            model: worker.swap_to_s(model) + min(self.around.drain_s, batch_s(self.around, worker, model))
            for model in worker.models
            if model in self.around.profiles
        }
        free_s = worker.loading_left_s(now_s)
        return PlannedWorker(worker.name, worker.kind, worker.next_model or "", swap_s, free_s)


def batch_s(around: Surroundings, worker: SimulatedWorker, model: str) -> float:
    """Return how long a full worker needs for a batch of the model's mean requests: some time, even without tokens."""
    profile = around.profiles[model]
    each = max(1.0, profile.service / profile.requests)
    return worker.models[model].slots * each / around.capacity_per_s[worker.kind, model]


def _batch(around: Surroundings, model: str) -> int:
    """Return the smallest batch of the workers that can load the model."""
    return min(worker.models[model].slots for worker in around.workers if model in worker.models)
