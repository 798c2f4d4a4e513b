"""RPM(n): at most n requests of a tenant in a trailing minute, the rest refused; who is let in is served first come,
first served.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 5.1, and every API's rate limit. Unit: requests.

    an arrival of tenant k at t is let in where fewer than n of k's were let in after t - 60 s

Invariant: of no tenant more than n are let in within any 60 s. What it is not: fair. A tenant is refused although the
engine is idle, and n tenants under their limits crowd out one another in the order of their arrival.

Deviation: where more than WINDOWS_KEPT_MAX tenants had requests let in within a minute, the one that was let in longest
ago starts with an empty minute.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.fcfs import FirstComeFirstServed
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.request import QueueRequest

WINDOW_S = 60.0
WINDOWS_KEPT_MAX = 100_000


class RequestsPerMinute(FirstComeFirstServed):
    """`most`: n. A request that is refused does not count; one that is let in and then cancelled does."""

    def __init__(self, most: int, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._most = most
        self._let_in_s: OrderedDict[str, deque[float]] = OrderedDict()

    def _accepts(self, request: QueueRequest, now_s: float) -> bool:
        self._forget(now_s)
        times = self._let_in_s.get(request.tenant)
        if times is None:
            times = self._let_in_s[request.tenant] = deque()
        while times and now_s - times[0] >= WINDOW_S:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now_s)
        self._let_in_s.move_to_end(request.tenant)
        return True

    def _forget(self, now_s: float) -> None:
        """They stand in the order of who was let in last: the minutes that are empty are in front. O(1) amortized."""
        while self._let_in_s:
            tenant, times = next(iter(self._let_in_s.items()))
            if now_s - times[-1] < WINDOW_S and len(self._let_in_s) <= WINDOWS_KEPT_MAX:
                return
            del self._let_in_s[tenant]


register(RequestsPerMinute, "rpm:N", make=lambda spec: RequestsPerMinute(spec.count(), spec.service), example="rpm:60")
