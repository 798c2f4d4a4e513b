"""VTC, the virtual token counter: serves next the tenant with the least service so far.

Source: Fairness in Serving Large Language Models (OSDI 2024), Algorithm 2; weights from section 4.3, the general
service function h from section 4.2. Tenant i has a counter c_i, in service units over its weight w_i:

    admission of request r of tenant k      c_k += h(input(r), 0) / w_k                    (line 24)
    an output token of r                    c_k += (h(p, q) - h(p, q - 1)) / w_k           (line 30)
    next                                    arg min c_i over the tenants with waiting requests    (line 20)
    counter lift, when u joins the queue    c_u = max(c_u, min c_i over waiting tenants)   (lines 11 to 13)
                  into an empty queue       c_u = max(c_u, c_l), l the last to leave it    (lines 8 to 10)

Invariant (Lemma 4.3): among waiting tenants, max c - min c <= max(w_p L_input, w_q M), where M is the number of tokens
that fit the batch. Theorem 4.4: the services of two tenants that are backlogged over any interval differ by at most
twice this bound.

How the next tenant is found: the paper scans all waiting tenants. Here a heap with stale keys (LazyMinHeap) finds
the lowest counter in O(log tenants) amortized: the counter of a waiting tenant only rises, except for a refund.

How output tokens are charged: if h is linear, the counter of a tenant rises by a constant at each decode step while its
requests run (TenantCounters). For any other h each running request is charged the difference of h.

Deviations:
- The load of a LoRA adapter is charged to the tenant that causes it (on_adapter_loaded): a further input of the
  request. So it adds its service to w_p L_input in the bound.
- A request that returns after a preemption joins the queue like a new arrival, with the lift of its tenant: the paper
  has no preemption.
- When an admission is undone, its tenant counts as never having left the queue and is not lifted. Its counter falls by
  the prompt's charge.
- The paper keeps every counter for ever. A tenant that has no requests, and a counter up to the lift level, cannot be
  distinguished from a new tenant and is forgotten. This is safe because the lift level never falls, except by refunds,
  which happen within the pass that made the charge. While the queue is empty, the lift level is the counter of the last
  tenant to leave, so this counter is kept.
- Ties are broken by tenant name and not by the order of a dictionary: the same trace gives the same schedule.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction, WeightedTokens
from gpu_worker.policies.fairness.accounting import LazyMinHeap, TenantCounters
from gpu_worker.policies.fairness.interface import QueueRequest, RequestRecord
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy

SLACK = 64
"""Counters that may be kept beyond twice the necessary ones before the unnecessary ones are dropped."""


class VirtualTokenCounter(TenantQueuePolicy):
    """Variants override the price of a request (`_price`, `_price_per_token`), the lift, or the heap that orders the
    tenants (`_by_counter`)."""

    _rises_with_steps = True
    """Whether, if h is linear, `counter` is what `_counters` has, and rises in steps with each running request."""

    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._counters = TenantCounters()
        self._by_counter = LazyMinHeap(self._counters.value)
        self._aside_by_counter = LazyMinHeap(self._counters.value)
        """Tenants with requests that are set aside: they are not next, but wait."""
        self._last_left: str | None = None
        self._forget_above = SLACK
        self._output_weight = service.output_weight if isinstance(service, WeightedTokens) else 0.0
        self._linear = isinstance(service, WeightedTokens)

    def counter(self, tenant: str) -> float:
        """Return service over weight; 0 for a tenant that is new or forgotten."""
        return self._counters.value(tenant)

    def may_exceed(self, level: float) -> bool:
        if self._linear and self._rises_with_steps:
            return self._counters.may_exceed(level)
        return any(self.counter(tenant) > level for tenant in {each.request.tenant for each in self._running.values()})

    def counters(self) -> list[dict[str, float]]:
        return [{tenant: self._counters.value(tenant) for tenant in (*self._queues, *self._tenants_aside)}]

    def _price(self, record: RequestRecord, output_tokens: int) -> float:
        """Return the total charge of the request at this output length; it never falls with the length."""
        request = record.request
        charged = self.service(request.input_tokens, output_tokens)
        if record.cached_tokens:
            charged -= self._cache_discount(record)
        return charged / request.weight

    def _price_per_token(self, record: RequestRecord) -> float:
        """Return the charge of each further output token. Only called if `_linear`: then it is constant."""
        return self._output_weight / record.request.weight

    def _tenant_joins(self, request: QueueRequest) -> None:
        self._counters.lift(request.tenant, self._lift_level())

    def _lift_level(self) -> float:
        lowest = self._lowest_waiting()
        if lowest is not None:
            return lowest
        return 0.0 if self._last_left is None else self._counters.value(self._last_left)

    def _lowest_waiting(self) -> float | None:
        """Return the lowest key of a tenant that waits; None if none does."""
        lowest, aside = self._by_counter.lowest(), self._aside_by_counter.lowest() if self._tenants_aside else None
        if lowest is None or aside is None:
            found = lowest or aside
            return None if found is None else found[0]
        return min(lowest[0], aside[0])

    def _tenant_set_aside(self, tenant: str) -> None:
        self._aside_by_counter.add(tenant)

    def _tenant_taken_back(self, tenant: str) -> None:
        self._aside_by_counter.remove(tenant)

    def _on_queue_entered(self, record: RequestRecord, new_queue: bool) -> None:
        if new_queue:
            self._by_counter.add(record.request.tenant)

    def _tenant_leaves(self, tenant: str) -> None:
        self._by_counter.remove(tenant)
        self._last_left = tenant

    def _next_tenant(self) -> str | None:
        lowest = self._by_counter.lowest()
        return None if lowest is None else lowest[1]

    def steps_of_head(self) -> float:
        """Return the steps until the lowest counter, which may rise, could reach the next one. Variants that choose
        otherwise, or whose counters rise otherwise, return 0."""
        lowest = self._by_counter.lowest()
        if lowest is None or not self._linear or self._lookups is not None:
            return 0
        return self._counters.steps_below(lowest[1], self._by_counter.above_lowest())

    def ignores_arrival_of(self, tenant: str) -> bool:
        """See QueuePolicy. Only a tenant that joins the waiting ones is lifted and compared with them."""
        return self._lookups is None and tenant in self._queues

    def _charge_prompt(self, record: RequestRecord) -> None:
        self._counters.add(record.request.tenant, self._price(record, 0))

    def _entered_batch(self, record: RequestRecord) -> None:
        if self._linear:
            record.per_token = self._price_per_token(record)
            self._counters.run(record.request.tenant, record.per_token)

    def _left_batch(self, record: RequestRecord) -> None:
        if self._linear:
            self._counters.stop(record.request.tenant, record.per_token)

    def _charge_output(self, record: RequestRecord, before: int) -> None:
        if self._linear and self._rises_with_steps:
            charge = (record.output_tokens - before) * record.per_token
        else:
            charge = self._price(record, record.output_tokens) - self._price(record, before)
        self._counters.add(record.request.tenant, charge)

    def _charge_steps(self, steps: int) -> None:
        self._counters.step = self._steps
        if not self._linear:
            for record in self._running.values():
                now = self._output_now(record)
                self._counters.add(record.request.tenant, self._price(record, now) - self._price(record, now - steps))

    def _refund_cached_tokens(self, record: RequestRecord, cached_tokens: int) -> None:
        before = self._price(record, 0)
        super()._refund_cached_tokens(record, cached_tokens)
        self._refund(record.request.tenant, before - self._price(record, 0))

    def _charge_load(self, record: RequestRecord) -> None:
        request = record.request
        self._counters.add(request.tenant, self.service(self.adapter_load_tokens, 0) / request.weight)

    def _correct_prompt_length(self, record: RequestRecord, counted: QueueRequest) -> None:
        before = self._price(record, record.output_tokens)
        super()._correct_prompt_length(record, counted)
        change = self._price(record, record.output_tokens) - before
        if change > 0:
            self._counters.add(counted.tenant, change)
        else:
            self._refund(counted.tenant, -change)

    def _refund_charges(self, record: RequestRecord) -> None:
        self._refund(record.request.tenant, self._price(record, record.output_tokens))

    def _refund(self, tenant: str, amount: float) -> None:
        self._counters.add(tenant, -amount)
        self._by_counter.key_decreased(tenant)
        self._aside_by_counter.key_decreased(tenant)

    def _tenant_absent(self, tenant: str) -> None:
        if len(self._counters) > self._forget_above:
            self._forget_absent_tenants()

    def _forget_absent_tenants(self) -> None:
        """Drop the counters of absent tenants up to the lift level. O(1) amortized."""
        level = self._lift_level()
        self._counters.keep(
            lambda tenant, counter: counter > level or tenant == self._last_left or self._received.is_present(tenant)
        )
        self._forget_above = 2 * len(self._counters) + SLACK


register(VirtualTokenCounter, "vtc")
