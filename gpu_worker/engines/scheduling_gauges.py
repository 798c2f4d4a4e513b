"""The scheduling gauges of an engine, from its policy and its admission."""

from __future__ import annotations

from math import ceil

from dispatcher.policies.service import WeightedTokens
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy
from gpu_worker.policies.preemption.admission import RESERVED_FOR, Admission
from gpu_worker.policies.scheduling_stats import SchedulingGauges, TierGauges
from gpu_worker.policies.tiers.tiered import TieredQueue


def scheduling_gauges(
    admission: Admission,
    *,
    running: dict[Tier, int],
    blocks: dict[Tier, int],
    blocks_total: int,
    pool_tokens: int,
    context_tokens: int,
    swap_bytes_total: float = 0.0,
    swap_bytes_used: float = 0.0,
) -> SchedulingGauges:
    """Return the gauges as of now. `running`, `blocks`: requests in the batch and their KV blocks, by tier.
    `pool_tokens`: M of VTC's Lemma 4.3. `context_tokens`: its L_input, the longest prompt."""
    policy = admission.policy
    groups = [counters for counters in policy.counters() if counters]
    reserve = ceil(admission.settings.premium_reserve * blocks_total)
    return SchedulingGauges(
        tiers={tier: TierGauges(_waiting(admission, tier), running.get(tier, 0)) for tier in Tier},
        counters={tenant: counter for counters in groups for tenant, counter in counters.items()},
        difference=max((max(group.values()) - min(group.values()) for group in groups), default=0.0),
        difference_bound=_difference_bound(policy, pool_tokens, context_tokens),
        swap_bytes_total=swap_bytes_total,
        swap_bytes_used=swap_bytes_used,
        reserve_blocks=reserve,
        reserve_used=min(reserve, sum(held for tier, held in blocks.items() if tier in RESERVED_FOR)),
        aged=policy.aged if isinstance(policy, TieredQueue) else 0,
    )


def _waiting(admission: Admission, tier: Tier) -> int:
    policy = admission.policy
    if isinstance(policy, TieredQueue):
        return policy.waiting_in(tier)
    return policy.waiting if tier is Tier.STANDARD else 0


def _difference_bound(policy: object, pool_tokens: int, context_tokens: int) -> float:
    """Return max(w_p L_input, w_q M), which holds for tenants of weight 1 and a linear h; 0 for any other h."""
    service = policy.service if isinstance(policy, TieredQueue | TenantQueuePolicy) else None
    if not isinstance(service, WeightedTokens):
        return 0.0
    return max(service.input_weight * context_tokens, service.output_weight * pool_tokens)
