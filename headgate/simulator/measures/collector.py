"""Measures a run as its requests end. It keeps two numbers of each request, and not the requests.

Of a run on the paged engine there are also measures of each tier, and the evictions. A tier has: percentiles of TTFT
and of the whole latency over its served requests; TPOT, the mean of (end - first token) / (output - 1) over those with
at least two output tokens, with the waits after evictions; attainment, the share of all its requests, refused and
dropped ones included, with a TTFT within the target; throughput, the input and output tokens of its served requests
over the run's time.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import CACHED_FRACTION, ServiceFunction, cache_discount
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats
from headgate.simulator.measures.service_difference import HORIZON_MIN_S, Difference, MeasuredRates
from headgate.simulator.measures.timeline import Timeline, TimelineCollector
from headgate.simulator.requests import SimRequest


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, by nearest rank."""

    p50: float
    p99: float


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """Return the median and the 99th percentile; None of no values."""
    ordered = sorted(seconds)
    p50, p99 = percentile(ordered, 0.50), percentile(ordered, 0.99)
    return None if p50 is None or p99 is None else Percentiles(p50, p99)


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of some requests: of a tenant, of an SLO class, or of all.

    `service`: service units of the served requests, less what their cached tokens save. The percentiles are None if no
    request was served. `in_time`: the part of all requests that had their first token when it was due; a refused one
    had none. `due`: how many had a time when it is due.

    Only of a fleet: `lateness_s`, by how many seconds first tokens came too late, in the mean over the served requests,
    those in time included; None if none was served. `early_service`: the service until the last request arrived.
    """

    requests: int
    served: int
    rejected: int
    service: float
    ttft_s: Percentiles | None
    latency_s: Percentiles | None
    in_time: float
    due: int = 0
    lateness_s: float | None = None
    early_service: float = 0.0


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    rejected: int = 0
    in_time: int = 0
    due: int = 0
    service: float = 0.0
    late_s: float = 0.0
    early_service: float = 0.0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    latency_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, other: _Sums) -> None:
        self.requests += other.requests
        self.rejected += other.rejected
        self.in_time += other.in_time
        self.due += other.due
        self.service += other.service
        self.late_s += other.late_s
        self.early_service += other.early_service
        self.ttft_s.extend(other.ttft_s)
        self.latency_s.extend(other.latency_s)

    def measures(self) -> Measures:
        return Measures(
            self.requests,
            len(self.ttft_s),
            self.rejected,
            self.service,
            percentiles(self.ttft_s),
            percentiles(self.latency_s),
            self.in_time / self.requests if self.requests else 0.0,
            self.due,
            self.late_s / len(self.ttft_s) if self.ttft_s else None,
            self.early_service,
        )


class Collector:
    """`horizon_s`: T of the service difference. Each request is reported once, when it has ended."""

    def __init__(self, service: ServiceFunction, horizon_s: float, *, timeline: bool = False) -> None:
        self.service = service
        self.cached_fraction = CACHED_FRACTION
        self.total_time_s = 0.0
        self.tokens = 0
        self.input_tokens = 0
        self.cached_tokens = 0
        self.adapter_loads: dict[str, int] = {}
        """Loads of adapters by tenant, of served requests."""
        self.rejections: dict[str, int] = {}
        self._rates = MeasuredRates(horizon_s) if horizon_s >= HORIZON_MIN_S else None
        self._timeline = TimelineCollector(horizon_s) if timeline else None
        self._sums: dict[tuple[str, ...], _Sums] = {}
        """The keys are tenant, SLO class and model; only a fleet sets the last two."""

    def on_rejected(self, request: SimRequest) -> None:
        self._sums_of(request).rejected += 1
        reason = request.rejected or "unknown"
        self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def on_served(self, request: SimRequest) -> None:
        arrival = request.arrival
        service = self.service(arrival.input_tokens, arrival.output_tokens)
        if request.cached_tokens:
            service -= cache_discount(self.service, request.cached_tokens, self.cached_fraction)
        sums = self._sums_of(request)
        sums.service += service
        sums.ttft_s.append(request.first_token_s - request.release_s)
        sums.latency_s.append(request.finish_s - request.release_s)
        self.tokens += arrival.input_tokens + arrival.output_tokens
        self.input_tokens += arrival.input_tokens
        self.cached_tokens += request.cached_tokens
        if request.adapter_loads:
            self.adapter_loads[arrival.tenant] = self.adapter_loads.get(arrival.tenant, 0) + request.adapter_loads
        if request.finish_s > self.total_time_s:
            self.total_time_s = request.finish_s
        if self._rates is not None:
            self._rates.on_ended(arrival.tenant, request.release_s, request.first_token_s, request.finish_s, service)
        if self._timeline is not None:
            self._timeline.on_served(request, service)

    @property
    def prefix_hit_rate(self) -> float:
        """The part of the served requests' input tokens that a prefix cache had."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    def _sums_of(self, request: SimRequest) -> _Sums:
        key = (request.arrival.tenant, request.slo_class, request.model)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = _Sums()
        sums.requests += 1
        due_s = request.due_s
        sums.in_time += 0.0 <= request.first_token_s <= due_s
        sums.due += due_s != inf
        return sums

    def difference(self) -> Difference | None:
        return None if self._rates is None else self._rates.difference()

    def timeline(self) -> Timeline | None:
        return None if self._timeline is None else self._timeline.timeline()

    def all(self) -> Measures:
        return _together(self._sums.values())

    def tenants(self) -> dict[str, Measures]:
        return self._by(0)

    def classes(self) -> dict[str, Measures]:
        """Return the measures by SLO class, without requests that have none."""
        return {name: measures for name, measures in self._by(1).items() if name}

    def models(self) -> dict[str, Measures]:
        """Return the measures by model, without requests of an engine that has only one."""
        return {name: measures for name, measures in self._by(2).items() if name}

    def _by(self, part: int) -> dict[str, Measures]:
        parts: defaultdict[str, list[_Sums]] = defaultdict(list)
        for key, sums in self._sums.items():
            parts[key[part]].append(sums)
        return {name: _together(parts[name]) for name in sorted(parts)}


class FleetCollector(Collector):
    """Also measures lateness, and the service until the last arrival, which is at `last_arrival_s`. A request's service
    is spread evenly from its first token to its last."""

    def __init__(self, service: ServiceFunction, last_arrival_s: float) -> None:
        super().__init__(service, 0.0)
        self._last_arrival_s = last_arrival_s

    def on_served(self, request: SimRequest) -> None:
        super().on_served(request)
        sums = self._sums[request.arrival.tenant, request.slo_class, request.model]
        sums.late_s += max(0.0, request.first_token_s - request.due_s)
        part = 1.0
        if request.finish_s > self._last_arrival_s:
            before_s = max(0.0, self._last_arrival_s - request.first_token_s)
            part = before_s / max(before_s, request.finish_s - request.first_token_s) if before_s else 0.0
        sums.early_service += part * self.service(request.arrival.input_tokens, request.arrival.output_tokens)


def _together(parts: Iterable[_Sums]) -> Measures:
    whole = _Sums()
    for part in parts:
        whole.add(part)
    return whole.measures()


_TTFT_TARGET_S: Mapping[Tier, float] = {Tier.PREMIUM: 0.2, Tier.STANDARD: 0.5}
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
        measured.within += request.ttft_s <= _TTFT_TARGET_S.get(tier, 0.0)
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
            attainment=measured.within / measured.requests if tier in _TTFT_TARGET_S else None,
            throughput_tokens_per_s=measured.tokens / self.total_time_s if self.total_time_s else 0.0,
            preemptions={str(strategy): stats.preemptions[strategy, tier] for strategy in Strategy},
        )


def _of_strategy(stats: SchedulingStats, strategy: Strategy) -> int:
    return sum(count for (evicted_by, _), count in stats.preemptions.items() if evicted_by is strategy)
