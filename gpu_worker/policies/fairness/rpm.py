"""RPM(n), requests per minute: accepts at most n requests of a tenant per trailing minute and refuses the rest.

Accepted requests are served first come, first served.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 5.1, and the usual rate limit of an API. Unit:
requests.

    an arrival of tenant k at time t is accepted if fewer than n requests of k were accepted after t - 60 s

Invariant: at most n requests of a tenant are accepted within any 60 s. The policy is not fair: it refuses a tenant
while the engine is idle, and tenants below their limits delay each other in the order of their arrivals.

Deviation: if more than WINDOWS_KEPT_MAX tenants had requests accepted within a minute, the tenant accepted the longest
ago restarts with an empty minute.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.fcfs import FcfsPolicy
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.request import QueueRequest

WINDOW_S = 60.0
WINDOWS_KEPT_MAX = 100_000


class RequestsPerMinute(FcfsPolicy):
    """`most`: the limit n. A refused request does not count against it; a request that is cancelled later does."""

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
