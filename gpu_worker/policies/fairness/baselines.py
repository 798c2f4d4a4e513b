"""Three orders that the VTC paper compares VTC with: FCFS, RPM and LCF. None of them is fair.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 5.1.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting import ArrivalQueue
from gpu_worker.policies.fairness.interface import QueueRequest, RequestRecord
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter


class FcfsPolicy(TenantQueuePolicy):
    """FCFS: the request that arrived first is served first, whatever its tenant. A preempted request returns to its old
    place.

    This is the order of every engine without a fairness policy, and the first row of the paper's tables.
    """

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._tenants: ArrivalQueue[str] = ArrivalQueue()
        """The tenant of each waiting request."""

    def _on_queue_entered(self, record: RequestRecord, new_queue: bool) -> None:
        self._tenants.add(record.place, record.request.tenant)

    def _left_queue(self, record: RequestRecord) -> None:
        self._tenants.remove(record.place)

    def _next_tenant(self) -> str | None:
        return self._tenants.head() if self._tenants else None

    def steps_of_head(self) -> float:
        return inf if self._lookups is None else 0

    def ignores_arrival_of(self, tenant: str) -> bool:
        return self._lookups is None and bool(self._waiting)


register(FcfsPolicy, "fcfs")


WINDOW_S = 60.0
WINDOWS_KEPT_MAX = 100_000


class RequestsPerMinute(FcfsPolicy):
    """RPM(n): accepts at most n requests of a tenant per trailing minute and refuses the rest. Accepted requests are
    served first come, first served. This is also the usual rate limit of an API. Unit: requests.

        an arrival of tenant k at time t is accepted if fewer than n requests of k were accepted after t - 60 s

    Invariant: at most n requests of a tenant are accepted within any 60 s. The policy is not fair: it refuses a tenant
    while the engine is idle, and tenants below their limits delay each other in the order of their arrivals.

    Deviation: if more than WINDOWS_KEPT_MAX tenants had requests accepted within a minute, the tenant accepted the
    longest ago restarts with an empty minute.

    `most`: the limit n. A refused request does not count against it; a request that is cancelled later does.
    """

    def __init__(self, most: int, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._most = most
        self._accepted_s: OrderedDict[str, deque[float]] = OrderedDict()
        """Times of the accepted requests of each tenant; the tenant accepted the longest ago is first."""

    def _accepts(self, request: QueueRequest, now_s: float) -> bool:
        self._forget(now_s)
        times = self._accepted_s.get(request.tenant)
        if times is None:
            times = self._accepted_s[request.tenant] = deque()
        while times and now_s - times[0] >= WINDOW_S:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now_s)
        self._accepted_s.move_to_end(request.tenant)
        return True

    def _forget(self, now_s: float) -> None:
        """Drop tenants with an empty minute, and tenants beyond WINDOWS_KEPT_MAX. O(1) amortized."""
        while self._accepted_s:
            tenant, times = next(iter(self._accepted_s.items()))
            if now_s - times[-1] < WINDOW_S and len(self._accepted_s) <= WINDOWS_KEPT_MAX:
                return
            del self._accepted_s[tenant]


register(RequestsPerMinute, "rpm:N", make=lambda spec: RequestsPerMinute(spec.count(), spec.service), example="rpm:60")


_COUNTERS_KEPT_MAX = 10_000


class LeastCounterFirst(VirtualTokenCounter):
    """LCF, least counter first: VTC without the counter lift. Charges, choice and units as in vtc.py:

        next    arg min c_i over the tenants with waiting requests; c_i is the service of tenant i since its first
                request

    Invariant: none that bounds the service of waiting tenants. A tenant that was absent catches up on all service that
    it did not ask for, at the cost of the other tenants. The paper uses LCF to show this; run it for comparison only.

    Deviation: the paper keeps every counter for ever. Here the counters of the last _COUNTERS_KEPT_MAX absent tenants
    are kept; a tenant that is absent for longer restarts at 0, like a new tenant.
    """

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._absent: OrderedDict[str, None] = OrderedDict()

    def _tenant_joins(self, request: QueueRequest) -> None:
        self._absent.pop(request.tenant, None)

    def _tenant_absent(self, tenant: str) -> None:
        self._absent[tenant] = None
        if len(self._absent) > _COUNTERS_KEPT_MAX:
            self._counters.drop(self._absent.popitem(last=False)[0])


register(LeastCounterFirst, "lcf")
