"""What is told of a run of the paged engine beyond any run's figures: by tier, and what was evicted.

Of each tier: TTFT and the whole, percentiles over served requests; TPOT, the mean over those with two output tokens or
more of (end - first token) / (output - 1), waits after an eviction included; attainment, the part of all its requests,
those refused or dropped among them, whose TTFT was within the target; throughput, input and output tokens of served
requests over the run's time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dispatcher.policies.service import ServiceFunction
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.preemption.costs import Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats
from headgate.simulator.measures.collector import Collector
from headgate.simulator.measures.percentiles import Percentiles, percentiles
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

TTFT_TARGET_S: Mapping[Tier, float] = {Tier.PREMIUM: 0.2, Tier.STANDARD: 0.5}
"""From docs/preemption-design.md, section 3.1; background has none."""


@dataclass(frozen=True, slots=True)
class TierFigures:
    """None where nothing was served, or there is no target. `preemptions`: planned, by strategy."""

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
    """`preemptions_per_min`: by strategy, and `native`: those that the engine made by itself."""

    tiers: dict[str, TierFigures]
    preemptions_per_min: dict[str, float]
    resumed: int
    exhausted: int
    recomputed_tokens: int
    swapped_out_bytes: float
    swapped_in_bytes: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Seen:
    requests: int = 0
    tokens: int = 0
    within: int = 0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    tpot_s: array[float] = field(default_factory=lambda: array("d"))
    latency_s: array[float] = field(default_factory=lambda: array("d"))


class TierCollector(Collector):
    """Beside what every run gathers: three numbers a request."""

    def __init__(self, service: ServiceFunction, horizon_s: float, *, timeline: bool = False) -> None:
        super().__init__(service, horizon_s, timeline=timeline)
        self._seen: dict[Tier, _Seen] = {}

    def rejected(self, request: SimRequest) -> None:
        super().rejected(request)
        self._of(request.tier).requests += 1

    def served(self, request: SimRequest) -> None:
        super().served(request)
        arrival, tier = request.arrival, request.tier
        seen = self._of(tier)
        seen.requests += 1
        seen.tokens += arrival.input_tokens + arrival.output_tokens
        seen.ttft_s.append(request.ttft_s)
        seen.latency_s.append(request.latency_s)
        seen.within += request.ttft_s <= TTFT_TARGET_S.get(tier, 0.0)
        if arrival.output_tokens > 1:
            seen.tpot_s.append((request.finish_s - request.first_token_s) / (arrival.output_tokens - 1))

    def scheduling(self, figures: SchedulingStats) -> Scheduling:
        minutes = self.total_time_s / 60
        counts = {str(strategy): _of_strategy(figures, strategy) for strategy in Strategy} | {"native": figures.native}
        tiers = {str(tier): self._tier(tier, figures) for tier in sorted(self._seen, key=lambda tier: tier.rank)}
        return Scheduling(
            tiers=tiers,
            preemptions_per_min={name: count / minutes if minutes else 0.0 for name, count in counts.items()},
            resumed=figures.resumed,
            exhausted=figures.exhausted,
            recomputed_tokens=figures.recomputed_tokens,
            swapped_out_bytes=figures.swapped_out_bytes,
            swapped_in_bytes=figures.swapped_in_bytes,
        )

    def _of(self, tier: Tier) -> _Seen:
        return self._seen.setdefault(tier, _Seen())

    def _tier(self, tier: Tier, figures: SchedulingStats) -> TierFigures:
        seen = self._seen[tier]
        return TierFigures(
            requests=seen.requests,
            served=len(seen.ttft_s),
            rejected=seen.requests - len(seen.ttft_s),
            ttft_s=percentiles(seen.ttft_s),
            tpot_s=sum(seen.tpot_s) / len(seen.tpot_s) if seen.tpot_s else None,
            latency_s=percentiles(seen.latency_s),
            attainment=seen.within / seen.requests if tier in TTFT_TARGET_S else None,
            throughput_tokens_per_s=seen.tokens / self.total_time_s if self.total_time_s else 0.0,
            preemptions={str(strategy): figures.preemptions[strategy, tier] for strategy in Strategy},
        )


def _of_strategy(figures: SchedulingStats, strategy: Strategy) -> int:
    return sum(count for (of, _), count in figures.preemptions.items() if of is strategy)


def with_tiers(arrivals: Iterable[Arrival], tiers: Mapping[str, str]) -> Iterable[Arrival]:
    """Give each arrival without a tier that of its tenant in `tiers`; if it has none there, it counts as standard."""
    return (_with_tier(arrival, tiers) for arrival in arrivals) if tiers else arrivals


def _with_tier(arrival: Arrival, tiers: Mapping[str, str]) -> Arrival:
    tier = tiers.get(arrival.tenant)
    return arrival if tier is None or arrival.tier is not None else replace(arrival, tier=tier)
