"""A literal account of what a model engine delivered, each token once, and of the resulting counters."""

from __future__ import annotations

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.tiered import TieredQueue


class Ledger:
    """VTC's counters in each tier, by Algorithm 2 read literally: lines 8 to 13 when a tenant joins, 24 and 30 for its
    charges."""

    def __init__(self) -> None:
        self.received: dict[str, list[int]] = {}
        self.given: dict[Tier, float] = {}
        self.counters: dict[tuple[Tier, str], float] = {}
        self._queues: dict[Tier, dict[str, int]] = {tier: {} for tier in Tier}
        self._last_left: dict[Tier, str] = {}
        self._got: dict[str, int] = {}
        """Output tokens by request, from its admission on."""
        self._fresh: set[str] = set()

    def enter_queue(self, request: QueueRequest) -> None:
        tier, tenant = request.tier, request.tenant
        queue = self._queues[tier]
        if tenant not in queue:
            level = min((self.counters[tier, other] for other in queue), default=None)
            if level is None and tier in self._last_left:
                level = self.counters[tier, self._last_left[tier]]
            self.counters[tier, tenant] = max(self.counters.get((tier, tenant), 0.0), level or 0.0)
        queue[tenant] = queue.get(tenant, 0) + 1

    def leave_queue(self, request: QueueRequest) -> None:
        queue = self._queues[request.tier]
        queue[request.tenant] -= 1
        if not queue[request.tenant]:
            del queue[request.tenant]
            self._last_left[request.tier] = request.tenant

    def admit(self, request: QueueRequest) -> None:
        self.leave_queue(request)
        if request.request_id in self._got:
            self._fresh.discard(request.request_id)
            return
        self._got[request.request_id] = 0
        self._fresh.add(request.request_id)
        self._give(request, request.input_tokens, 0)

    def on_generated(self, request: QueueRequest, output_tokens: int) -> None:
        new = output_tokens - self._got[request.request_id]
        assert new == 1, "an evicted request keeps its output"
        self._got[request.request_id] = output_tokens
        self._give(request, 0, new)

    def undo_admit(self, request: QueueRequest) -> None:
        if request.request_id in self._fresh:
            del self._got[request.request_id]
            self._give(request, -request.input_tokens, 0)
        queue = self._queues[request.tier]
        queue[request.tenant] = queue.get(request.tenant, 0) + 1

    def check(self, policy: TieredQueue) -> None:
        got = {tenant: [each.input_tokens, each.output_tokens] for tenant, each in policy.received.items()}
        for tenant in {*got, *self.received}:
            assert got.get(tenant, [0, 0]) == self.received.get(tenant, [0, 0])
        for each in policy.received.values():
            assert each.service == each.input_tokens + 2 * each.output_tokens
        assert {tier: policy.shares.given(tier) for tier in self.given} == self.given
        assert policy.shares.total == sum(self.given.values())
        counters = {(tier, tenant): policy._tiers[tier].counter(tenant) for tier, tenant in self.counters}
        assert counters == self.counters

    def _give(self, request: QueueRequest, input_tokens: int, output_tokens: int) -> None:
        service = input_tokens + 2 * output_tokens
        tokens = self.received.setdefault(request.tenant, [0, 0])
        tokens[0] += input_tokens
        tokens[1] += output_tokens
        self.given[request.tier] = self.given.get(request.tier, 0.0) + service
        self.counters[request.tier, request.tenant] += service / request.weight
