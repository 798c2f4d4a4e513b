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
each; counters of waiting tenants only rise, so an entry is a lower bound, and a stale one at the top is replaced by
today's counter. Each charge causes at most one such replacement: O(log tenants) amortized. A returned charge lowers a
counter; it pushes a fresh entry, and the old one is dropped when it comes up, or when such entries outnumber the rest.

Deviations:
- A tenant that returns after a preemption joins the queue like a new arrival, lift included: the paper has none.
- One whose admission is put back was never away: it is not lifted. Its counter falls by the prompt's charge.
- The paper keeps a counter for ever. A tenant that neither waits nor runs, and whose counter is not above the level
  that it would be lifted to, is indistinguishable from a new one, and is forgotten: that level never falls, but by a
  charge that is returned, and these are returned within the pass that made them. While the queue is empty the level is
  the counter of the last tenant to leave it, so that one is kept.
- Ties go by tenant name, not by arrival order of the dictionary: the same trace gives the same schedule.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.queue_policy import POLICIES, QueuePolicy, QueueRequest

SLACK = 64
"""Counters, and heap entries, kept beyond twice those that matter, before the rest is looked through."""


class VirtualTokenCounter(QueuePolicy):
    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._counters: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._last_left: str | None = None
        self._forget_above = SLACK

    def counter(self, tenant: str) -> float:
        """Service over weight; 0 for a tenant that is new or forgotten."""
        return self._counters.get(tenant, 0.0)

    def _joins(self, request: QueueRequest) -> None:
        self._counters[request.tenant] = max(self.counter(request.tenant), self._lift_level())

    def _lift_level(self) -> float:
        lowest = self._lowest()
        if lowest is not None:
            return lowest[0]
        return 0.0 if self._last_left is None else self._counters[self._last_left]

    def _enqueued(self, request: QueueRequest, place: int, new_in_queue: bool) -> None:
        if new_in_queue:
            self._push(request.tenant)

    def _next_tenant(self) -> str | None:
        lowest = self._lowest()
        return None if lowest is None else lowest[1]

    def _lowest(self) -> tuple[float, str] | None:
        """The waiting tenant with the lowest counter, left on top of the heap."""
        heap = self._heap
        while heap:
            pushed, tenant = heap[0]
            counter = self._counters[tenant] if tenant in self._lines else None
            if counter == pushed:
                return heap[0]
            if counter is not None and counter > pushed:
                heapreplace(heap, (counter, tenant))
            else:
                heappop(heap)
        return None

    def _push(self, tenant: str) -> None:
        heappush(self._heap, (self._counters[tenant], tenant))
        if len(self._heap) > 2 * len(self._lines) + SLACK:
            self._heap = [(self._counters[waiting], waiting) for waiting in self._lines]
            heapify(self._heap)

    def _charged(self, request: QueueRequest, service: float) -> None:
        tenant = request.tenant
        self._counters[tenant] += service / request.weight
        if service < 0 and tenant in self._lines:
            self._push(tenant)

    def _leaves(self, tenant: str) -> None:
        self._last_left = tenant

    def _tenant_gone(self, tenant: str) -> None:
        if len(self._counters) > self._forget_above:
            self._forget_level_tenants()

    def _forget_level_tenants(self) -> None:
        """Drop counters that say nothing: gone, and not above what they would be lifted to. O(1) amortized."""
        level = self._lift_level()
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if counter > level or tenant == self._last_left or self._received.present(tenant)
        }
        self._forget_above = 2 * len(self._counters) + SLACK


POLICIES["vtc"] = VirtualTokenCounter
