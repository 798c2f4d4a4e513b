"""VTC with a cap on each tenant's share of the running batch, in tokens.

Source: Fairness in Serving Large Language Models (OSDI 2024), Remark 4.7: "restrict the memory usage for each client in
the running batch". Counters, units and lift as in vtc.py; with h_k the batch tokens of tenant k:

    a request takes     input(r) + its true output where that is known, else what it has generated so far
    tenant k may        where nothing of it runs, or h_k + what its oldest waiting request takes <= cap
    next                arg min c_i over the tenants that may

Invariant: where outputs are known, h_k <= max(cap, the largest request of k). The M of Lemma 4.3, as far as it is
what one tenant can have in the batch, becomes that. Price: it is not work conserving. Room stays empty while everybody
who waits is at the cap (Theorem 4.8 says that a better bound costs exactly this).

Where outputs are not known, h_k grows while its requests run and may end above the cap: nothing is evicted for it.

How it is picked: a tenant found at its cap is set aside until something of it leaves the batch or its oldest waiting
request is another one; each such event causes at most one more look. O(log tenants) amortized.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.lazy_min_heap import LazyMinHeap
from gpu_worker.policies.fairness.accounting.tenant_counters import TenantCounters
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import RequestRecord


class CappedTokenCounter(VirtualTokenCounter):
    work_conserving = False

    def __init__(self, cap_tokens: int, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._cap_tokens = cap_tokens
        self._may = LazyMinHeap(self._counters.value)
        self._batch_tokens = TenantCounters()
        self._batch_requests: dict[str, int] = {}

    def batch_tokens(self, tenant: str) -> int:
        """What its running requests take."""
        return int(self._batch_tokens.value(tenant))

    def _next_tenant(self) -> str | None:
        while (lowest := self._may.lowest()) is not None:
            tenant = lowest[1]
            if self._fits_cap(tenant):
                return tenant
            self._may.remove(tenant)
        return None

    def _fits_cap(self, tenant: str) -> bool:
        if tenant not in self._batch_requests:
            return True
        return self._batch_tokens.value(tenant) + _takes(self._queues[tenant].head()) <= self._cap_tokens

    def _recheck(self, tenant: str) -> None:
        if tenant in self._queues and tenant not in self._may:
            self._may.add(tenant)

    def _enqueued(self, record: RequestRecord, new_in_queue: bool) -> None:
        super()._enqueued(record, new_in_queue)
        self._recheck(record.request.tenant)

    def _left_queue(self, record: RequestRecord) -> None:
        super()._left_queue(record)
        self._recheck(record.request.tenant)

    def _leaves(self, tenant: str) -> None:
        super()._leaves(tenant)
        self._may.remove(tenant)

    def _entered_batch(self, record: RequestRecord) -> None:
        super()._entered_batch(record)
        tenant = record.request.tenant
        self._batch_requests[tenant] = self._batch_requests.get(tenant, 0) + 1
        self._batch_tokens.add(tenant, _takes(record))
        if record.request.output_tokens is None:
            self._batch_tokens.run(tenant, 1.0)

    def _generated(self, record: RequestRecord, before: int) -> None:
        super()._generated(record, before)
        if record.request.output_tokens is None:
            self._batch_tokens.add(record.request.tenant, record.output_tokens - before)

    def _decoded(self, steps: int) -> None:
        super()._decoded(steps)
        self._batch_tokens.step = self._steps

    def _left_batch(self, record: RequestRecord) -> None:
        super()._left_batch(record)
        tenant = record.request.tenant
        if record.request.output_tokens is None:
            self._batch_tokens.stop(tenant, 1.0)
        self._batch_tokens.add(tenant, -_takes(record))
        self._batch_requests[tenant] -= 1
        if not self._batch_requests[tenant]:
            del self._batch_requests[tenant]
            self._batch_tokens.drop(tenant)
        self._recheck(tenant)

    def _refund(self, tenant: str, amount: float) -> None:
        super()._refund(tenant, amount)
        self._may.key_decreased(tenant)


def _takes(record: RequestRecord) -> int:
    """Tokens of the batch, as of its count."""
    known = record.request.output_tokens
    return record.request.input_tokens + (record.output_tokens if known is None else known)


register(
    CappedTokenCounter,
    "vtc-cap:TOKENS",
    make=lambda spec: CappedTokenCounter(spec.count(), spec.service),
    example="vtc-cap:2000",
)
