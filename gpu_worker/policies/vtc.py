"""VTC, the virtual token counter: the tenant served least so far goes next.

Source: Fairness in Serving Large Language Models (OSDI 2024), Algorithm 2; weights from section 4.3, any service
function h from section 4.2. Each tenant i has a counter c_i, in service units over its weight:

    admission of request r of tenant k      c_k += h(input(r), 0) / w_k                    (line 24)
    an output token of r                    c_k += (h(p, q) - h(p, q - 1)) / w_k           (line 30)
    next                                    arg min c_i over the tenants with something waiting   (line 20)
    counter lift, when u joins the queue    c_u = max(c_u, min c_i over those waiting)     (lines 11 to 13)
                  into an empty queue       c_u = max(c_u, c_l), l the last to leave it    (lines 8 to 10)

Invariant (Lemma 4.3): among waiting tenants, max c - min c <= max(w_p L_input, w_q M), M the tokens that fit the batch.
Theorem 4.4: two tenants backlogged over any interval differ in service by at most twice that.

How it is picked: the paper scans all waiting tenants. Here a heap holds one entry (counter when pushed, tenant) for
each; counters of waiting tenants only rise, so an entry is a lower bound, and a stale one at the top is pushed again
with today's counter. Each charge causes at most one such push: O(log tenants) amortized. A returned charge lowers a
counter; it pushes a fresh entry, and duplicates are told by their value.

Deviation: the paper keeps a counter for ever. A tenant that neither waits nor runs, and whose counter is not above the
level that it would be lifted to, is indistinguishable from a new one, and is forgotten. While the queue is empty that
level is the counter of the last tenant to leave it, so that one is kept. Ties go by tenant name, not by arrival order
of the dictionary: the same trace gives the same schedule.
"""

from __future__ import annotations

from heapq import heappop, heappush

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.queue_policy import POLICIES, QueuePolicy, QueueRequest

FORGET_SLACK = 64
"""Counters kept beyond twice those that matter, before the rest is looked through."""


class VirtualTokenCounter(QueuePolicy):
    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._counters: dict[str, float] = {}
        self._in_batch: dict[str, int] = {}
        self._heap: list[tuple[float, str]] = []
        self._last_left = 0.0
        """Counter of the last tenant that left the queue, as it then was or has since become."""
        self._last_left_tenant: str | None = None
        self._forget_above = FORGET_SLACK

    def counter(self, tenant: str) -> float:
        """Service over weight; a forgotten tenant's is the level that it would be lifted to."""
        return self._counters.get(tenant, 0.0)

    def _joins(self, request: QueueRequest) -> None:
        level = self._lift_level()
        self._counters[request.tenant] = max(self._counters.get(request.tenant, 0.0), level)

    def _lift_level(self) -> float:
        lowest = self._lowest()
        if lowest is not None:
            return lowest[0]
        if self._last_left_tenant is not None:
            self._last_left = self._counters.get(self._last_left_tenant, self._last_left)
        return self._last_left

    def _enqueued(self, request: QueueRequest, new_in_queue: bool) -> None:
        if new_in_queue:
            heappush(self._heap, (self._counters[request.tenant], request.tenant))

    def _next_tenant(self) -> str | None:
        lowest = self._lowest()
        return None if lowest is None else lowest[1]

    def _lowest(self) -> tuple[float, str] | None:
        """The waiting tenant with the lowest counter, left on top of the heap."""
        heap = self._heap
        while heap:
            pushed, tenant = heap[0]
            if tenant not in self._lines:
                heappop(heap)
                continue
            counter = self._counters[tenant]
            if counter == pushed:
                return heap[0]
            heappop(heap)
            if counter > pushed:
                heappush(heap, (counter, tenant))
        return None

    def _charged(self, request: QueueRequest, service: float) -> None:
        tenant = request.tenant
        self._counters[tenant] = self._counters.get(tenant, 0.0) + service / request.weight
        if service < 0 and tenant in self._lines:
            heappush(self._heap, (self._counters[tenant], tenant))

    def _leaves(self, tenant: str) -> None:
        self._last_left_tenant = tenant
        self._last_left = self._counters[tenant]

    def admit(self, request_id: str) -> QueueRequest:
        request = super().admit(request_id)
        self._in_batch[request.tenant] = self._in_batch.get(request.tenant, 0) + 1
        return request

    def put_back(self, request_id: str) -> None:
        self._leave_batch(self._running[request_id].request.tenant)
        super().put_back(request_id)

    def _finished(self, request: QueueRequest) -> None:
        super()._finished(request)
        self._leave_batch(request.tenant)
        if len(self._counters) > self._forget_above:
            self._forget_level_tenants()

    def _leave_batch(self, tenant: str) -> None:
        self._in_batch[tenant] -= 1
        if not self._in_batch[tenant]:
            del self._in_batch[tenant]

    def _forget_level_tenants(self) -> None:
        """Drop counters that say nothing: gone, and not above what they would be lifted to. Amortized O(1) a finish."""
        level = self._lift_level()
        kept = {self._last_left_tenant, *self._lines, *self._in_batch}
        self._counters = {
            tenant: counter for tenant, counter in self._counters.items() if counter > level or tenant in kept
        }
        self._forget_above = 2 * len(self._counters) + FORGET_SLACK


POLICIES["vtc"] = VirtualTokenCounter
