"""A planner that serves one global queue strictly in its order, as a fleet of plain engines would.

The head takes a free slot of a worker with its model, or else of one that is swapping to it. If there is none, a worker
with a free slot swaps to its model; the worker with the fewest running requests is taken. Without a free slot anywhere
the head waits, and everything behind it too. The cost of a swap is not considered.

Source: the baselines of QLM (SoCC 2024), section 8: first come first served and earliest deadline first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Surroundings, Swap
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest

FAR = 3
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
        usable = [(distance, len(worker.running), worker.name, worker) for distance, worker in found if distance < FAR]
        return min(usable, default=(FAR, 0, "", None))[3]

    def _distance(self, worker: SimulatedWorker, model: str) -> int:
        """Return 0 for a free slot, 1 for one after a swap that has begun, 2 for a swap; FAR if there is no slot."""
        if model not in worker.models:
            return FAR
        if worker.target is not None:
            is_open = worker.target == model and len(self._bound[worker.name]) < worker.models[model].slots
            return 1 if is_open else FAR
        if worker.model is not None and not worker.free:
            return FAR
        return 0 if worker.model == model else 2
