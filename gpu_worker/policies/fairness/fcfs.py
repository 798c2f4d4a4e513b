"""FCFS: first come, first served, whoever comes.

The order of every engine without a fairness policy, and the first row of the VTC paper's tables (section 5.1).
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.arrival_queue import ArrivalQueue
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy
from gpu_worker.policies.request import RequestRecord


class FirstComeFirstServed(TenantQueuePolicy):
    """One line for all. A request keeps its place in it, also when it comes back."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._all: ArrivalQueue[str] = ArrivalQueue()

    def _enqueued(self, record: RequestRecord, new_in_queue: bool) -> None:
        self._all.add(record.place, record.request.tenant)

    def _left_queue(self, record: RequestRecord) -> None:
        self._all.remove(record.place)

    def _next_tenant(self) -> str | None:
        return self._all.head() if self._all else None


register(FirstComeFirstServed, "fcfs")
