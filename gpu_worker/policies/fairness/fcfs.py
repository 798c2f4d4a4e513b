"""FCFS: the request that arrived first is served first, whatever its tenant.

This is the order of every engine without a fairness policy, and the first row of the VTC paper's tables (section 5.1).
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.arrival_queue import ArrivalQueue
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy
from gpu_worker.policies.request import RequestRecord


class FcfsPolicy(TenantQueuePolicy):
    """One queue for all tenants. A preempted request returns to its old place."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._tenants: ArrivalQueue[str] = ArrivalQueue()
        """The tenant of each waiting request."""

    def _entered_queue(self, record: RequestRecord, new_queue: bool) -> None:
        self._tenants.add(record.place, record.request.tenant)

    def _left_queue(self, record: RequestRecord) -> None:
        self._tenants.remove(record.place)

    def _next_tenant(self) -> str | None:
        return self._tenants.head() if self._tenants else None


register(FcfsPolicy, "fcfs")
