"""Baselines: what a policy is compared with. LCF, RPM and DRR will stand here too.

FCFS: first come, first served, whoever comes. The order of every engine without a fairness policy, and of the first row
of the VTC paper's tables (section 5.1).
"""

from __future__ import annotations

from heapq import heappop, heappush

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.queue_policy import POLICIES, QueuePolicy, QueueRequest


class FirstComeFirstServed(QueuePolicy):
    """A request keeps its place in the order of arrival, also when its admission is put back."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._arrivals = 0
        self._places: dict[str, int] = {}
        self._heap: list[tuple[int, str, str]] = []

    def _enqueued(self, request: QueueRequest, new_in_queue: bool) -> None:
        if request.request_id not in self._places:
            self._arrivals += 1
            self._places[request.request_id] = self._arrivals
        heappush(self._heap, (self._places[request.request_id], request.tenant, request.request_id))

    def _next_tenant(self) -> str | None:
        while self._heap:
            _, tenant, request_id = self._heap[0]
            if request_id in self._waiting:
                return tenant
            heappop(self._heap)
        return None

    def _finished(self, request: QueueRequest) -> None:
        super()._finished(request)
        self._places.pop(request.request_id, None)

    def cancel(self, request_id: str) -> None:
        super().cancel(request_id)
        self._places.pop(request_id, None)


POLICIES["fcfs"] = FirstComeFirstServed
