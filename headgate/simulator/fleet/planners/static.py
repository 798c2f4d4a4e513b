"""A static partition: each worker has one model for the whole run, in proportion to the models' demand. No swaps.

The partition knows the whole workload in advance. Every model gets one worker, those with the greatest demand first;
each further worker goes to the model with the greatest demand per worker. Demand is in worker seconds. If there are
more models than workers, the requests of the models without a worker are refused. Within a model, the request that is
due first is first. QLM's evaluation has no such baseline; it is the simplest alternative to swapping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Surroundings, Swap, planner
from headgate.simulator.fleet.planners.model_queues import ModelQueues
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest


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
            while self._queues.waiting(model) and (free := least_loaded(self.workers, model)) is not None:
                yield Dispatch(self._queues.take(model), free)


def least_loaded(workers: Sequence[SimulatedWorker], model: str) -> SimulatedWorker | None:
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
