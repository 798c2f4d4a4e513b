"""The planners that headgate's own is compared with: plain engines in four forms, and a scheduler like SHEPHERD.

fcfs, edf: one global queue, served strictly in its order, as a fleet of plain engines would: first come first served,
or earliest deadline first. The head takes a free slot of a worker with its model, or else of one that is swapping to
it. If there is none, a worker with a free slot swaps to its model; the worker with the fewest running requests is
taken. Without a free slot anywhere the head waits, and everything behind it too. The cost of a swap is not considered.
Source: the baselines of QLM (SoCC 2024), section 8.

round-robin: engines behind a balancer that sends requests to them in turn; each serves its own queue, first come first
served. A worker swaps to the model of its first request. The balancer knows neither models nor lengths nor the workers'
speed. Source: vLLM instances with their default scheduler, which QLM (section 8) compares with.

static: a partition, which knows the whole workload in advance. Each worker has one model for the whole run, in
proportion to the models' demand. No swaps. Every model gets one worker, those with the greatest demand first; each
further worker goes to the model with the greatest demand per worker. Demand is in worker seconds. If there are more
models than workers, the requests of the models without a worker are refused. Within a model, the request that is due
first is first. QLM's evaluation has no such baseline; it is the simplest alternative to swapping.

static-seen: the same partition of what arrived in the first _SEEN_S after the first request, without knowledge of what
comes. Until then each worker serves the model that it has. Afterwards requests for models without a worker are refused,
those that wait already too.

shepherd: a scheduler like SHEPHERD (NSDI 2023), as QLM (section 8) compares with it: fixed batches, no swap costs.
A worker runs one batch of one model to its end and admits no request meanwhile. A free worker takes the batch with the
most value: of each model, the requests that are due first, as many as the worker has slots; its value is their number
divided by the batch's time. Requests that are late already are served when no model has others. A batch that is
_PREEMPT times as valuable as a running one preempts it, and the running requests are returned. SHEPHERD plans with
known execution times, as other neural networks have them: here a batch is expected to take as long as _LENGTH_FACTOR
times the mean output. It assumes that every model stands in memory, and so does the choice of a batch here, although a
model that is not loaded must be swapped in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from headgate.simulator.fleet.planners.interface import (
    Action,
    Dispatch,
    Planner,
    Preempt,
    Refuse,
    Surroundings,
    Swap,
    planner,
    profiles_of,
)
from headgate.simulator.fleet.planners.qlm import batch_s
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

_SEEN_S = 15.0
_FAR = 3
"""No slot now, nor after a swap that is possible."""


class HeadFirstPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._queue: list[tuple[float, int, SimRequest]] = []
        self._bound: dict[str, deque[SimRequest]] = {worker.name: deque() for worker in around.workers}
        """Requests that wait for a worker's swap, by its name."""

    @abstractmethod
    def key(self, request: SimRequest) -> float:
        """Return the place of the request in the queue. At equal keys, the first arrival is first."""

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        heappush(self._queue, (self.key(request), request.number, request))

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self.on_arrived(request, now_s)

    def actions(self, now_s: float) -> Iterator[Action]:
        for worker in self.workers:
            bound = self._bound[worker.name]
            while bound and worker.free:
                yield Dispatch(bound.popleft(), worker)
        while self._queue and (found := self._worker_for(self._queue[0][2])) is not None:
            request = heappop(self._queue)[2]
            if found.target is None and found.model == request.model:
                yield Dispatch(request, found)
                continue
            self._bound[found.name].append(request)
            if found.target is None:
                yield Swap(found, request.model)

    def _worker_for(self, request: SimRequest) -> SimulatedWorker | None:
        found = ((self._distance(worker, request.model), worker) for worker in self.workers)
        usable = [(distance, len(worker.running), worker.name, worker) for distance, worker in found if distance < _FAR]
        return min(usable, default=(_FAR, 0, "", None))[3]

    def _distance(self, worker: SimulatedWorker, model: str) -> int:
        """Return 0 for a free slot, 1 for one after a swap that has begun, 2 for a swap; FAR if there is no slot."""
        if model not in worker.models:
            return _FAR
        if worker.target is not None:
            is_open = worker.target == model and len(self._bound[worker.name]) < worker.models[model].slots
            return 1 if is_open else _FAR
        if worker.model is not None and not worker.free:
            return _FAR
        return 0 if worker.model == model else 2


@planner("fcfs")
class FcfsPlanner(HeadFirstPlanner):
    def key(self, request: SimRequest) -> float:
        return request.number


@planner("edf")
class EdfPlanner(HeadFirstPlanner):
    def key(self, request: SimRequest) -> float:
        return request.due_s


@planner("round-robin")
class RoundRobinPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._queues: dict[str, deque[SimRequest]] = {worker.name: deque() for worker in around.workers}
        self._worker_of: dict[str, str] = {}
        """The worker of each request that has not ended."""
        self._turn = 0

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        able = [worker for worker in self.workers if request.model in worker.models]
        name = able[self._turn % len(able)].name
        self._turn += 1
        self._worker_of[request.request_id] = name
        self._queues[name].append(request)

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self._queues[self._worker_of[request.request_id]].append(request)

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        del self._worker_of[request.request_id]

    def actions(self, now_s: float) -> Iterator[Action]:
        for worker in self.workers:
            queue = self._queues[worker.name]
            while queue and queue[0].model == worker.model and worker.free:
                yield Dispatch(queue.popleft(), worker)
            if queue and queue[0].model != worker.model and worker.target is None:
                yield Swap(worker, queue[0].model)


class ModelQueues:
    def __init__(self) -> None:
        self._of: dict[str, list[tuple[float, int, SimRequest]]] = {}

    def add(self, request: SimRequest) -> None:
        heappush(self._of.setdefault(request.model, []), (request.due_s, request.number, request))

    def waiting(self, model: str) -> int:
        return len(self._of.get(model, ()))

    def take(self, model: str) -> SimRequest:
        """Remove and return the model's first request. Raises KeyError or IndexError if none waits."""
        return heappop(self._of[model])[2]


@planner("static")
class StaticPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._queues = ModelQueues()
        self._model_of = _partition(around)

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        if request.model in self._model_of.values():
            self._queues.add(request)
        else:
            request.rejected = "no_worker"

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self._queues.add(request)

    def actions(self, now_s: float) -> Iterator[Action]:
        for worker in self.workers:
            model = self._model_of.get(worker.name, worker.model)
            if worker.target is None and model is not None and worker.model != model:
                yield Swap(worker, model)
        for model in self.around.profiles:
            while self._queues.waiting(model) and (free := _least_loaded(self.workers, model)) is not None:
                yield Dispatch(self._queues.take(model), free)


@planner("static-seen")
class SeenStaticPlanner(StaticPlanner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._model_of = {}
        self._seen: list[Arrival] = []
        self._until_s = inf
        """When the partition is made; infinity before the first request, and afterwards."""
        self._is_made = False

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        if self._is_made:
            super().on_arrived(request, now_s)
            return
        if not self._seen:
            self._until_s = now_s + _SEEN_S
        self._seen.append(replace(request.arrival, model=request.model))
        self._queues.add(request)

    def next_s(self) -> float:
        return self._until_s

    def actions(self, now_s: float) -> Iterator[Action]:
        if now_s >= self._until_s:
            self._until_s, self._is_made = inf, True
            self._model_of = _partition(replace(self.around, profiles=profiles_of(self._seen, "")))
        if self._is_made:
            for model in self.around.profiles:
                while self._queues.waiting(model) and model not in self._model_of.values():
                    yield Refuse(self._queues.take(model), "no_worker")
        yield from super().actions(now_s)


def _least_loaded(workers: Sequence[SimulatedWorker], model: str) -> SimulatedWorker | None:
    """Return the worker with the model and a free slot that has the smallest part of its slots in use, or None."""
    able = [worker for worker in workers if worker.model == model and worker.free > 0]
    return min(able, key=lambda worker: (len(worker.running) / worker.models[model].slots, worker.name), default=None)


def _partition(around: Surroundings) -> dict[str, str]:
    """Return the model of each worker that gets one. Workers with fewer models choose first."""
    given: Counter[str] = Counter()
    found: dict[str, str] = {}
    for worker in sorted(around.workers, key=lambda worker: (len(worker.models), worker.name)):
        wanted = [model for model in around.profiles if model in worker.models]
        if wanted:
            best = max(wanted, key=lambda model: _need(around, worker, model, given[model]))
            found[worker.name] = best
            given[best] += 1
    return _keep_models(around.workers, found)


def _keep_models(workers: Sequence[SimulatedWorker], found: dict[str, str]) -> dict[str, str]:
    """Exchange models between equal workers, so that as many as possible keep the model that they have."""
    for worker in workers:
        model = found.get(worker.name)
        for other in workers:
            has = found.get(other.name)
            alike = (other.kind, other.models.keys()) == (worker.kind, worker.models.keys())
            if alike and model != worker.model and has == worker.model and has != other.model:
                found[worker.name], found[other.name], model = str(has), str(model), has
    return found


def _need(around: Surroundings, worker: SimulatedWorker, model: str, given: int) -> tuple[float, float]:
    """Return the worker seconds of the model's requests per worker that it has; first, whether it has none."""
    seconds = around.profiles[model].service / around.capacity_per_s[worker.kind, model]
    return (inf, seconds) if not given else (seconds / given, 0.0)


_PREEMPT = 3.03
"""The threshold for which SHEPHERD proves its competitive ratio."""
_LENGTH_FACTOR = 2.0


class _Stock:
    """The waiting requests of one model: the timely ones, the first due before the others, and the late."""

    def __init__(self) -> None:
        self._fresh: list[tuple[float, int, SimRequest]] = []
        self._late: deque[SimRequest] = deque()

    def add(self, request: SimRequest) -> None:
        heappush(self._fresh, (request.due_s, request.number, request))

    def fresh(self, now_s: float) -> int:
        """Return how many requests are not late yet."""
        while self._fresh and self._fresh[0][0] < now_s:
            self._late.append(heappop(self._fresh)[2])
        return len(self._fresh)

    def late(self) -> int:
        return len(self._late)

    def take(self, most: int) -> list[SimRequest]:
        """Remove and return a batch: of the timely requests, or else of the late ones."""
        if self._fresh:
            return [heappop(self._fresh)[2] for _ in range(min(most, len(self._fresh)))]
        return [self._late.popleft() for _ in range(min(most, len(self._late)))]


@planner("shepherd")
class ShepherdPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._stocks = {model: _Stock() for model in around.profiles}
        self._pending: dict[str, list[SimRequest]] = {}
        """The batch that each swapping worker will run."""
        self._values = {worker.name: 0.0 for worker in around.workers}
        """The value of the batch that each worker runs."""
        self._batch_s = {
            (worker.name, model): _LENGTH_FACTOR * batch_s(around, worker, model)
            for worker in around.workers
            for model in worker.models
            if model in around.profiles
        }

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        self._stocks[request.model].add(request)

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self.on_arrived(request, now_s)

    def actions(self, now_s: float) -> Iterator[Action]:
        for worker in self.workers:
            if worker.target is None and not worker.running:
                yield from self._start_batch(worker, now_s)
        for worker in self.workers:
            if worker.target is None and worker.running:
                model, value = self._best(worker, now_s)
                if model and value >= _PREEMPT * self._values[worker.name]:
                    yield Preempt(worker)
                    yield from self._start_batch(worker, now_s)

    def _start_batch(self, worker: SimulatedWorker, now_s: float) -> Iterator[Action]:
        """Start the batch that waits for the worker's swap, or else the best one."""
        batch = self._pending.pop(worker.name, None)
        if batch is None:
            model, _ = self._best(worker, now_s)
            if not model:
                return
            batch = self._stocks[model].take(worker.models[model].slots)
            self._values[worker.name] = len(batch) / self._batch_s[worker.name, model]
            if model != worker.model:
                self._pending[worker.name] = batch
                yield Swap(worker, model)
                return
        for request in batch:
            yield Dispatch(request, worker)

    def _best(self, worker: SimulatedWorker, now_s: float) -> tuple[str, float]:
        """Return the model with the most valuable batch for the worker, and its value; "" if nothing waits."""
        best: tuple[float, int, str] = (0.0, 0, "")
        for model, stock in self._stocks.items():
            if model in worker.models:
                value = min(stock.fresh(now_s), worker.models[model].slots) / self._batch_s[worker.name, model]
                best = max(best, (value, stock.late(), model))
        value, late, model = best
        return (model, value) if value or late else ("", 0.0)
