"""Measures of a run on the paged engine: those of each tier, and the evictions.

Each tier has: percentiles of TTFT and of the whole latency over its served requests; TPOT, the mean of
(end - first token) / (output - 1) over those with at least two output tokens, with the waits after evictions;
attainment, the share of all its requests, refused and dropped ones included, with a TTFT within the target; throughput,
the input and output tokens of its served requests over the run's time.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatcher.policies.service import ServiceFunction
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.preemption.costs import Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats
from headgate.simulator.measures.collector import Collector, Percentiles, percentiles
from headgate.simulator.requests import SimRequest

TTFT_TARGET_S: Mapping[Tier, float] = {Tier.PREMIUM: 0.2, Tier.STANDARD: 0.5}
"""The targets of docs/preemption-design.md, section 3.1. Background has no target."""


@dataclass(frozen=True, slots=True)
class TierMeasures:
    """None: no request was served, or the tier has no target. `preemptions`: planned evictions, by strategy."""

    requests: int
    served: int
    rejected: int
    ttft_s: Percentiles | None
    tpot_s: float | None
    latency_s: Percentiles | None
    attainment: float | None
    throughput_tokens_per_s: float
    preemptions: dict[str, int]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """`preemptions_per_min`: by strategy, and `native`, those that the engine made without a plan."""

    tiers: dict[str, TierMeasures]
    preemptions_per_min: dict[str, float]
    resumed: int
    exhausted: int
    recomputed_tokens: int
    swapped_out_bytes: float
    swapped_in_bytes: float


@dataclass(slots=True)
class _OneTier:
    requests: int = 0
    tokens: int = 0
    within: int = 0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    tpot_s: array[float] = field(default_factory=lambda: array("d"))
    latency_s: array[float] = field(default_factory=lambda: array("d"))


class TierCollector(Collector):
    """Also keeps three numbers of each request for the measures of the tiers."""

    def __init__(self, service: ServiceFunction, horizon_s: float, *, timeline: bool = False) -> None:
        super().__init__(service, horizon_s, timeline=timeline)
        self._tiers: dict[Tier, _OneTier] = {}

    def on_rejected(self, request: SimRequest) -> None:
        super().on_rejected(request)
        self._of(request.tier).requests += 1

    def on_served(self, request: SimRequest) -> None:
        super().on_served(request)
        arrival, tier = request.arrival, request.tier
        measured = self._of(tier)
        measured.requests += 1
        measured.tokens += arrival.input_tokens + arrival.output_tokens
        measured.ttft_s.append(request.ttft_s)
        measured.latency_s.append(request.latency_s)
        measured.within += request.ttft_s <= TTFT_TARGET_S.get(tier, 0.0)
        if arrival.output_tokens > 1:
            measured.tpot_s.append((request.finish_s - request.first_token_s) / (arrival.output_tokens - 1))

    def scheduling(self, stats: SchedulingStats) -> Scheduling:
        minutes = self.total_time_s / 60
        counts = {str(strategy): _of_strategy(stats, strategy) for strategy in Strategy} | {"native": stats.native}
        tiers = {str(tier): self._tier(tier, stats) for tier in sorted(self._tiers, key=lambda tier: tier.rank)}
        return Scheduling(
            tiers=tiers,
            preemptions_per_min={name: count / minutes if minutes else 0.0 for name, count in counts.items()},
            resumed=stats.resumed,
            exhausted=stats.exhausted,
            recomputed_tokens=stats.recomputed_tokens,
            swapped_out_bytes=stats.swapped_out_bytes,
            swapped_in_bytes=stats.swapped_in_bytes,
        )

    def _of(self, tier: Tier) -> _OneTier:
        return self._tiers.setdefault(tier, _OneTier())

    def _tier(self, tier: Tier, stats: SchedulingStats) -> TierMeasures:
        measured = self._tiers[tier]
        return TierMeasures(
            requests=measured.requests,
            served=len(measured.ttft_s),
            rejected=measured.requests - len(measured.ttft_s),
            ttft_s=percentiles(measured.ttft_s),
            tpot_s=sum(measured.tpot_s) / len(measured.tpot_s) if measured.tpot_s else None,
            latency_s=percentiles(measured.latency_s),
            attainment=measured.within / measured.requests if tier in TTFT_TARGET_S else None,
            throughput_tokens_per_s=measured.tokens / self.total_time_s if self.total_time_s else 0.0,
            preemptions={str(strategy): stats.preemptions[strategy, tier] for strategy in Strategy},
        )


def _of_strategy(stats: SchedulingStats, strategy: Strategy) -> int:
    return sum(count for (evicted_by, _), count in stats.preemptions.items() if evicted_by is strategy)
