"""VTC with a cap on the tokens that each tenant may have in the running batch.

Source: Fairness in Serving Large Language Models (OSDI 2024), Remark 4.7: "restrict the memory usage for each client in
the running batch". Counters, units and lift as in vtc.py. With h_k the tokens of tenant k in the batch:

    size of request r    input(r) + its true output length where known, else + its output so far
    tenant k may run     if it has no running request, or h_k + the size of its oldest waiting request <= cap
    next                 arg min c_i over the tenants that may run

Invariant: where output lengths are known, h_k <= max(cap, the largest request of k). In Lemma 4.3 this bound replaces M
as far as M stands for the batch tokens of one tenant. The price is that the policy is not work conserving: capacity
stays unused while every waiting tenant is at the cap. Theorem 4.8 says that a better bound must cost this.

Where output lengths are not known, h_k grows while requests run and may end above the cap; no request is evicted for
it.

How the next tenant is found: a tenant at its cap leaves the heap until one of its requests leaves the batch or its
oldest waiting request changes. Each such event causes at most one more check, so the choice is O(log tenants)
amortized.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting import LazyMinHeap, TenantCounters
from gpu_worker.policies.fairness.interface import RequestRecord
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter


class CappedTokenCounter(VirtualTokenCounter):
    """`cap_tokens`: the cap of each tenant, in tokens."""

    work_conserving = False

    def __init__(self, cap_tokens: int, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._cap_tokens = cap_tokens
        self._may_run = LazyMinHeap(self._counters.value)
        self._batch_tokens = TenantCounters()
        self._batch_requests: dict[str, int] = {}

    def batch_tokens(self, tenant: str) -> int:
        """Return the tokens of the tenant's running requests."""
        return int(self._batch_tokens.value(tenant))

    def _next_tenant(self) -> str | None:
        while (lowest := self._may_run.lowest()) is not None:
            tenant = lowest[1]
            if self._fits_cap(tenant):
                return tenant
            self._may_run.remove(tenant)
        return None

    def steps_of_head(self) -> float:
        return 0

    def _fits_cap(self, tenant: str) -> bool:
        if tenant not in self._batch_requests:
            return True
        return self._batch_tokens.value(tenant) + _size(self._next_of(tenant)) <= self._cap_tokens

    def _recheck(self, tenant: str) -> None:
        if tenant in self._queues and tenant not in self._may_run:
            self._may_run.add(tenant)

    def _on_queue_entered(self, record: RequestRecord, new_queue: bool) -> None:
        super()._on_queue_entered(record, new_queue)
        self._recheck(record.request.tenant)

    def _left_queue(self, record: RequestRecord) -> None:
        super()._left_queue(record)
        self._recheck(record.request.tenant)

    def _tenant_leaves(self, tenant: str) -> None:
        super()._tenant_leaves(tenant)
        self._may_run.remove(tenant)

    def _entered_batch(self, record: RequestRecord) -> None:
        super()._entered_batch(record)
        tenant = record.request.tenant
        self._batch_requests[tenant] = self._batch_requests.get(tenant, 0) + 1
        self._batch_tokens.add(tenant, _size(record))
        if record.request.output_tokens is None:
            self._batch_tokens.run(tenant, 1.0)

    def _charge_output(self, record: RequestRecord, before: int) -> None:
        super()._charge_output(record, before)
        if record.request.output_tokens is None:
            self._batch_tokens.add(record.request.tenant, record.output_tokens - before)

    def _charge_steps(self, steps: int) -> None:
        super()._charge_steps(steps)
        self._batch_tokens.step = self._steps

    def _left_batch(self, record: RequestRecord) -> None:
        super()._left_batch(record)
        tenant = record.request.tenant
        if record.request.output_tokens is None:
            self._batch_tokens.stop(tenant, 1.0)
        self._batch_tokens.add(tenant, -_size(record))
        self._batch_requests[tenant] -= 1
        if not self._batch_requests[tenant]:
            del self._batch_requests[tenant]
            self._batch_tokens.drop(tenant)
        self._recheck(tenant)

    def _refund(self, tenant: str, amount: float) -> None:
        super()._refund(tenant, amount)
        self._may_run.key_decreased(tenant)


def _size(record: RequestRecord) -> int:
    """Return the batch tokens of a request, at its recorded output length."""
    known = record.request.output_tokens
    return record.request.input_tokens + (record.output_tokens if known is None else known)


register(
    CappedTokenCounter,
    "vtc-cap:TOKENS",
    make=lambda spec: CappedTokenCounter(spec.count(), spec.service),
    example="vtc-cap:2000",
)
