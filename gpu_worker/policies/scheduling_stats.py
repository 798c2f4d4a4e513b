"""What the scheduler did, counted: for people and their alarms; no decision depends on it. Counts never fall."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.preemption.costs import Eviction, Strategy


@dataclass(slots=True)
class ObservedCosts:
    """Of one strategy, beside what was predicted of the same ones: seconds, summed."""

    measured: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0

    def __add__(self, other: ObservedCosts) -> ObservedCosts:
        seconds = self.predicted_s + other.predicted_s, self.measured_s + other.measured_s
        return ObservedCosts(self.measured + other.measured, *seconds)


@dataclass(slots=True)
class SchedulingStats:
    """`preemptions`: for waiting requests. `native`: evictions that the engine made by itself, for running requests
    that grew. `resumed`: requests that came back. Tokens and bytes since the engine started."""

    preemptions: Counter[tuple[Strategy, Tier]] = field(default_factory=Counter)
    native: int = 0
    resumed: int = 0
    exhausted: int = 0
    expired: int = 0
    recomputed_tokens: int = 0
    swapped_out_bytes: float = 0.0
    swapped_in_bytes: float = 0.0
    costs: dict[Strategy, ObservedCosts] = field(default_factory=dict)

    def count_eviction(self, eviction: Eviction, strategy: Strategy | None = None) -> None:
        """`strategy`: where it was another than planned."""
        self.preemptions[strategy or eviction.strategy, eviction.resident.tier] += 1
        self.exhausted += eviction.exhausted

    def record_cost(self, strategy: Strategy, *, predicted_s: float, measured_s: float) -> None:
        """What a preemption by it was thought to take, and took."""
        seen = self.costs.setdefault(strategy, ObservedCosts())
        seen.measured += 1
        seen.predicted_s += predicted_s
        seen.measured_s += measured_s

    def __add__(self, other: SchedulingStats) -> SchedulingStats:
        """Of two engines, one after the other."""
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
    """How things stand. `counters`: of tenants with something waiting, in service over weight. `difference`: the most
    by which two of them differ within a tier; `difference_bound`: VTC's for it (Lemma 4.3), 0 where there is none.
    `reserve_blocks`: kept for premium, and of those held by it `reserve_used`."""

    tiers: dict[Tier, TierGauges] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    difference: float = 0.0
    difference_bound: float = 0.0
    swap_bytes_total: float = 0.0
    swap_bytes_used: float = 0.0
    reserve_blocks: int = 0
    reserve_used: int = 0
