"""A run over time, for reports: rates, response times, queues and KV use in bins, measured as the requests end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from headgate.simulator.requests import SimRequest

_BINS = 120
"""Bins from 0 to the horizon. A run that lasts longer gets more bins of the same width."""
BINS_MAX = 8 * _BINS
"""Most bins. A run that lasts longer than this gets bins twice as wide."""

_Bins = defaultdict[int, float]


@dataclass(frozen=True, slots=True)
class Timeline:
    """`times_s`: the centres of the bins. Rates in service units a second. Each list has one value for each bin."""

    bin_s: float
    times_s: list[float]
    service_rate: dict[str, list[float]]
    demand_rate: dict[str, list[float]]
    response_s: dict[str, list[float | None]]
    """Mean time to the first token of the requests sent in the bin; None if none of them was served."""
    queue: dict[str, list[float]]
    """Mean number of waiting requests in the bin."""
    kv_tokens: list[float]
    """Mean number of KV tokens held in the bin."""
    backlog: dict[str, list[float]] = field(default_factory=dict)
    """Mean service units of the waiting requests in the bin."""
    weights: dict[str, float] = field(default_factory=dict)
    """The weights of the tenants; 1 for the others."""


def service_difference(timeline: Timeline) -> list[float]:
    """Return the greatest difference of accumulated service between two tenants at the end of each bin."""
    sums = [list(accumulate(rate * timeline.bin_s for rate in rates)) for rates in timeline.service_rate.values()]
    return [max(values) - min(values) for values in zip(*sums, strict=True)] or [0.0] * len(timeline.times_s)


def furthest_behind(timeline: Timeline) -> list[float]:
    """Return, at the end of each bin, by how many service units a tenant that waits is behind the others that wait.

    In each bin in which several tenants have waiting requests, each is due a part of their service, by its weight. What
    it gets less than that adds up while it waits, up to what it has waiting: a tenant that asks for less gets less, and
    is not behind. This is the difference that a fair order bounds.
    """
    behind: dict[str, float] = {}
    furthest = []
    for number in range(len(timeline.times_s)):
        waiting = [name for name, backlog in timeline.backlog.items() if backlog[number] > 0]
        service = {name: timeline.service_rate[name][number] * timeline.bin_s for name in waiting}
        each = sum(service.values()) / (sum(timeline.weights.get(name, 1.0) for name in waiting) or 1.0)
        behind = {
            name: min(
                timeline.backlog[name][number],
                behind.get(name, 0.0) + each * timeline.weights.get(name, 1.0) - service[name],
            )
            for name in waiting
        }
        furthest.append(max(0.0, *behind.values()) if behind else 0.0)
    return furthest


def _bins() -> _Bins:
    return defaultdict(float)


@dataclass(slots=True)
class _TenantBins:
    """Amounts by bin. `response_s`, `responses`: sum and number of the response times of requests sent in the bin."""

    weight: float = 1.0
    service: _Bins = field(default_factory=_bins)
    demand: _Bins = field(default_factory=_bins)
    waiting_s: _Bins = field(default_factory=_bins)
    backlog: _Bins = field(default_factory=_bins)
    response_s: _Bins = field(default_factory=_bins)
    responses: _Bins = field(default_factory=_bins)

    def all(self) -> Iterable[_Bins]:
        return self.service, self.demand, self.waiting_s, self.backlog, self.response_s, self.responses


class TimelineCollector:
    """Its memory grows with tenants and bins, not with the length of the run."""

    def __init__(self, horizon_s: float) -> None:
        self._bin_s = max(horizon_s, 1.0) / _BINS
        self._tenants: defaultdict[str, _TenantBins] = defaultdict(_TenantBins)
        self._kv_s = _bins()
        self._last = 0

    def on_served(self, request: SimRequest, service: float) -> None:
        """Add a request that has all its tokens."""
        self._widen_to(request.finish_s)
        tenant = self._tenants[request.tenant]
        tenant.weight = request.weight
        sent = int(request.release_s / self._bin_s)
        tenant.demand[sent] += service
        tenant.response_s[sent] += request.ttft_s
        tenant.responses[sent] += 1
        for number, inside_s, _ in self._parts(request.release_s, request.admitted_s):
            tenant.waiting_s[number] += inside_s
            tenant.backlog[number] += inside_s * service
        self._spread_service(tenant, request, service)
        self._add_kv(request)

    def _spread_service(self, tenant: _TenantBins, request: SimRequest, service: float) -> None:
        """Spread its service evenly from its first token to its last."""
        lasted_s = request.finish_s - request.first_token_s
        for number, inside_s, _ in self._parts(request.first_token_s, request.finish_s):
            tenant.service[number] += service * (inside_s / lasted_s if lasted_s else 1.0)

    def _add_kv(self, request: SimRequest) -> None:
        """Add its KV tokens: the prompt from its admission on, and the output as it grows."""
        lasted_s = request.finish_s - request.first_token_s
        for number, inside_s, _ in self._parts(request.admitted_s, request.first_token_s):
            self._kv_s[number] += inside_s * request.arrival.input_tokens
        for number, inside_s, middle_s in self._parts(request.first_token_s, request.finish_s):
            grown = (middle_s - request.first_token_s) / lasted_s if lasted_s else 0.0
            self._kv_s[number] += inside_s * (request.arrival.input_tokens + grown * request.arrival.output_tokens)

    def _parts(self, first_s: float, last_s: float) -> Iterable[tuple[int, float, float]]:
        """Yield the number of each bin that the interval touches, and the length and the middle of the common part."""
        for number in range(int(first_s / self._bin_s), int(last_s / self._bin_s) + 1):
            low_s, high_s = max(first_s, number * self._bin_s), min(last_s, (number + 1) * self._bin_s)
            yield number, max(0.0, high_s - low_s), (low_s + high_s) / 2

    def _widen_to(self, at_s: float) -> None:
        while at_s / self._bin_s >= BINS_MAX:
            self._bin_s *= 2
            self._last //= 2
            for bins in (self._kv_s, *(bins for tenant in self._tenants.values() for bins in tenant.all())):
                _halve(bins)
        self._last = max(self._last, int(at_s / self._bin_s))

    def timeline(self) -> Timeline:
        bins = range(self._last + 1)
        tenants = {name: self._tenants[name] for name in sorted(self._tenants)}

        def rates(of: _Bins) -> list[float]:
            return [of.get(number, 0.0) / self._bin_s for number in bins]

        return Timeline(
            bin_s=self._bin_s,
            times_s=[(number + 0.5) * self._bin_s for number in bins],
            service_rate={name: rates(tenant.service) for name, tenant in tenants.items()},
            demand_rate={name: rates(tenant.demand) for name, tenant in tenants.items()},
            response_s={name: _means(tenant, bins) for name, tenant in tenants.items()},
            queue={name: rates(tenant.waiting_s) for name, tenant in tenants.items()},
            kv_tokens=rates(self._kv_s),
            backlog={name: rates(tenant.backlog) for name, tenant in tenants.items()},
            weights={name: tenant.weight for name, tenant in tenants.items()},
        )


def _halve(bins: _Bins) -> None:
    """Merge each two bins into one."""
    amounts = list(bins.items())
    bins.clear()
    for number, amount in amounts:
        bins[number // 2] += amount


def _means(tenant: _TenantBins, bins: range) -> list[float | None]:
    sums, numbers = tenant.response_s, tenant.responses
    return [sums[number] / numbers[number] if numbers.get(number) else None for number in bins]
