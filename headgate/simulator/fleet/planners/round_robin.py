"""Engines behind a balancer that sends requests to them in turn: each serves its own queue, first come first served.

A worker swaps to the model of its first request. The balancer knows neither models nor lengths nor the workers' speed.
Source: vLLM instances with their default scheduler, which QLM (SoCC 2024, section 8) compares with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Surroundings, Swap, planner
from headgate.simulator.requests import SimRequest


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
