"""A scheduler like SHEPHERD (NSDI 2023), as QLM (SoCC 2024, section 8) compares with it: fixed batches, no swap costs.

A worker runs one batch of one model to its end and admits no request meanwhile. A free worker takes the batch with the
most value: of each model, the requests that are due first, as many as the worker has slots; its value is their number
divided by the batch's time. Requests that are late already are served when no model has others. A
batch that is PREEMPT times as valuable as a running one preempts it, and the running requests are returned.

SHEPHERD plans with known execution times, as other neural networks have them: here a batch is expected to
take as long as LENGTH_FACTOR times the mean output. It assumes that every model stands in memory, and so does the
choice of a batch here, although a model that is not loaded must be swapped in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Preempt, Surroundings, Swap, planner
from headgate.simulator.fleet.planners.qlm import batch_s
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest

PREEMPT = 3.03
"""The threshold for which SHEPHERD proves its competitive ratio."""
LENGTH_FACTOR = 2.0


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
            (worker.name, model): LENGTH_FACTOR * batch_s(around, worker, model)
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
                if model and value >= PREEMPT * self._values[worker.name]:
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
