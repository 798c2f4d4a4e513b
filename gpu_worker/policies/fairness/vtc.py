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

How it is picked: the paper scans all waiting tenants. Here a heap with stale keys (lowest.py) finds the lowest in
O(log tenants) amortized: counters of waiting tenants only rise, but for a charge that is returned.

How tokens are charged: where h is linear, a tenant's counter rises by a constant each decode step while its requests
run (tenant_counters.py); for any other h each running request is charged the difference of h.

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

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction, WeightedTokens
from gpu_worker.policies.fairness.accounting.lazy_min_heap import LazyMinHeap
from gpu_worker.policies.fairness.accounting.tenant_counters import TenantCounters
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy
from gpu_worker.policies.request import QueueRequest, RequestRecord

SLACK = 64
"""Counters kept beyond twice those that matter, before the rest is looked through."""


class VirtualTokenCounter(TenantQueuePolicy):
    """Algorithms that differ from it override what a request costs (`_price`, `_price_per_token`), the lift, or what
    orders the tenants (`_by_counter`)."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._counters = TenantCounters()
        self._by_counter = LazyMinHeap(self._counters.value)
        self._last_left: str | None = None
        self._forget_above = SLACK
        self._output_weight = service.output_weight if isinstance(service, WeightedTokens) else 0.0
        self._linear = isinstance(service, WeightedTokens)

    def counter(self, tenant: str) -> float:
        """Service over weight; 0 for a tenant that is new or forgotten."""
        return self._counters.value(tenant)

    def counters(self) -> list[dict[str, float]]:
        return [{tenant: self._counters.value(tenant) for tenant in self._queues}]

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        """What the request is charged in all, having generated so many tokens; never falling in them."""
        charged = self.service(record.request.input_tokens, output_tokens) - self._saved(record)
        return charged / record.request.weight

    def _price_per_token(self, record: RequestRecord) -> float:
        """What each further output token adds to its price; asked only where `_linear` says that it is always the
        same."""
        return self._output_weight / record.request.weight

    def _joins(self, request: QueueRequest) -> None:
        self._counters.lift(request.tenant, self._lift_level())

    def _lift_level(self) -> float:
        lowest = self._by_counter.lowest()
        if lowest is not None:
            return lowest[0]
        return 0.0 if self._last_left is None else self._counters.value(self._last_left)

    def _enqueued(self, record: RequestRecord, new_in_queue: bool) -> None:
        if new_in_queue:
            self._by_counter.add(record.request.tenant)

    def _leaves(self, tenant: str) -> None:
        self._by_counter.remove(tenant)
        self._last_left = tenant

    def _next_tenant(self) -> str | None:
        lowest = self._by_counter.lowest()
        return None if lowest is None else lowest[1]

    def _admitted(self, record: RequestRecord) -> None:
        self._counters.add(record.request.tenant, self._price(record, 0))

    def _entered_batch(self, record: RequestRecord) -> None:
        if self._linear:
            self._counters.run(record.request.tenant, self._price_per_token(record))

    def _left_batch(self, record: RequestRecord) -> None:
        if self._linear:
            self._counters.stop(record.request.tenant, self._price_per_token(record))

    def _generated(self, record: RequestRecord, before: int) -> None:
        charge = self._price(record, record.output_tokens) - self._price(record, before)
        self._counters.add(record.request.tenant, charge)

    def _decoded(self, steps: int) -> None:
        self._counters.step = self._steps
        if not self._linear:
            for record in self._running.values():
                now = self._output_now(record)
                self._counters.add(record.request.tenant, self._price(record, now) - self._price(record, now - steps))

    def _discounted(self, record: RequestRecord, cached_tokens: int) -> None:
        before = self._price(record, 0)
        super()._discounted(record, cached_tokens)
        self._refund(record.request.tenant, before - self._price(record, 0))

    def _returned(self, record: RequestRecord) -> None:
        self._refund(record.request.tenant, self._price(record, record.output_tokens))

    def _refund(self, tenant: str, amount: float) -> None:
        self._counters.add(tenant, -amount)
        self._by_counter.key_decreased(tenant)

    def _tenant_gone(self, tenant: str) -> None:
        if len(self._counters) > self._forget_above:
            self._forget_level_tenants()

    def _forget_level_tenants(self) -> None:
        """Drop counters that say nothing: gone, and not above what they would be lifted to. O(1) amortized."""
        level = self._lift_level()
        self._counters.keep(
            lambda tenant, counter: counter > level or tenant == self._last_left or self._received.present(tenant)
        )
        self._forget_above = 2 * len(self._counters) + SLACK


register(VirtualTokenCounter, "vtc")
