"""Counts and gauges of the scheduler, for metrics and alarms; no decision depends on them. Counts never fall.

The gauges are read from the queue and the admission of an engine, in the form that its stats have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from dispatcher.policies.service import WeightedTokens
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.admission import RESERVED_FOR, Admission
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Eviction, Strategy


@dataclass(slots=True)
class ObservedCosts:
    """Measured costs of one strategy beside the predictions for the same preemptions: sums, in seconds."""

    measured: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0

    def __add__(self, other: ObservedCosts) -> ObservedCosts:
        seconds = self.predicted_s + other.predicted_s, self.measured_s + other.measured_s
        return ObservedCosts(self.measured + other.measured, *seconds)


@dataclass(slots=True)
class SchedulingStats:
    """Counts since the engine started.

    `preemptions`: evictions for a waiting request. `native`: evictions by the engine itself, when a running request
    needed a block and none was free. `resumed`: requests that ran again after an eviction. `exhausted`: requests
    dropped because they were preempted as often as allowed. `expired`: requests ended at their deadline.
    `wrong_fields`: fields of the dispatcher that could not be read.
    """

    preemptions: Counter[tuple[Strategy, Tier]] = field(default_factory=Counter)
    native: int = 0
    resumed: int = 0
    exhausted: int = 0
    expired: int = 0
    wrong_fields: int = 0
    recomputed_tokens: int = 0
    swapped_out_bytes: float = 0.0
    swapped_in_bytes: float = 0.0
    costs: dict[Strategy, ObservedCosts] = field(default_factory=dict)

    def count_eviction(self, eviction: Eviction, strategy: Strategy | None = None) -> None:
        """Count an eviction. `strategy`: the one that was used, if it differs from the plan."""
        self.preemptions[strategy or eviction.strategy, eviction.resident.tier] += 1
        self.exhausted += eviction.exhausted

    def record_cost(self, strategy: Strategy, *, predicted_s: float, measured_s: float) -> None:
        """Add the predicted and the measured cost of one preemption."""
        seen = self.costs.setdefault(strategy, ObservedCosts())
        seen.measured += 1
        seen.predicted_s += predicted_s
        seen.measured_s += measured_s

    def __add__(self, other: SchedulingStats) -> SchedulingStats:
        """Add the counts of an engine and of its predecessor."""
        costs = {
            strategy: self.costs.get(strategy, ObservedCosts()) + other.costs.get(strategy, ObservedCosts())
            for strategy in {**self.costs, **other.costs}
        }
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name not in ("preemptions", "costs")
        }
        return SchedulingStats(preemptions=self.preemptions + other.preemptions, costs=costs, **sums)


@dataclass(frozen=True, slots=True)
class TierGauges:
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class SchedulingGauges:
    """The present state of the scheduler.

    `counters`: of tenants with waiting requests, in service over weight. `difference`: the largest difference of two
    such counters within a tier. `difference_bound`: VTC's bound for it (Lemma 4.3), 0 if the policy has none.
    `reserve_blocks`: blocks of the premium reserve; `reserve_used`: those in use. `aged`: admissions, since the
    engine started, of requests that aging had raised by a whole rank.
    """

    tiers: dict[Tier, TierGauges] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    difference: float = 0.0
    difference_bound: float = 0.0
    swap_bytes_total: float = 0.0
    swap_bytes_used: float = 0.0
    reserve_blocks: int = 0
    reserve_used: int = 0
    aged: int = 0

    def with_counters(self, counters: dict[str, float], difference: float) -> SchedulingGauges:
        return replace(self, counters=counters, difference=difference)


def largest_difference(groups: Iterable[Collection[float]]) -> float:
    """Return the largest difference of two counters of one group; 0 without any."""
    return max((max(group) - min(group) for group in groups if group), default=0.0)


def outermost(counters: Mapping[str, float], tenants_max: int) -> dict[str, float]:
    """Return at most `tenants_max` counters: half of them the lowest, half the highest."""
    ordered = sorted(counters.items(), key=lambda item: (item[1], item[0]))
    half = tenants_max // 2
    return dict(ordered if len(ordered) <= tenants_max else ordered[:half] + ordered[half - tenants_max :])


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
    with_counters: bool = True,
) -> SchedulingGauges:
    """Return the gauges as of now. `running`, `blocks`: requests in the batch and their KV blocks, by tier.
    `pool_tokens`: M of VTC's Lemma 4.3. `context_tokens`: its L_input, the longest prompt. `with_counters`: False
    leaves out the counters and their difference, which cost time for each waiting tenant."""
    policy = admission.policy
    groups = policy.counters() if with_counters else []
    reserve = ceil(admission.settings.premium_reserve * blocks_total)
    return SchedulingGauges(
        tiers={tier: TierGauges(_waiting(admission, tier), running.get(tier, 0)) for tier in Tier},
        counters={tenant: counter for counters in groups for tenant, counter in counters.items()},
        difference=largest_difference(group.values() for group in groups),
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
