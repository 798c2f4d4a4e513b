"""A run over time, for reports: rates, response times, queues and KV use by bins, from the requests as they end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from headgate.simulator.requests import SimRequest

BINS = 120
"""To the horizon; what lasts longer gets further bins of the same width."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """`times_s`: the bins' centres. Service in service units a second. A tenant's lists are as long as `times_s`."""

    bin_s: float
    times_s: list[float]
    service_rate: dict[str, list[float]]
    demand_rate: dict[str, list[float]]
    response_s: dict[str, list[float | None]]
    """Mean time to the first token of the requests sent in the bin; None where none was served."""
    queue: dict[str, list[float]]
    """Requests waiting, mean over the bin."""
    kv_tokens: list[float]
    """Held at the bin's centre."""


@dataclass(slots=True)
class _Tenant:
    service: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    demand: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    waiting_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    response_s: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


class TimelineCollector:
    def __init__(self, horizon_s: float) -> None:
        self._bin_s = max(horizon_s, 1.0) / BINS
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._kv: defaultdict[int, float] = defaultdict(float)
        self._last = 0

    def asked(self, request: SimRequest, service: float) -> None:
        self._tenants[request.tenant].demand[self._bin(request.release_s)] += service / self._bin_s

    def served(self, request: SimRequest, service: float) -> None:
        tenant = self._tenants[request.tenant]
        tenant.response_s[self._bin(request.release_s)].append(request.ttft_s)
        self._spread(tenant.waiting_s, request.release_s, request.admitted_s, request.admitted_s - request.release_s)
        self._spread(tenant.service, request.first_token_s, request.finish_s, service)
        self._held(request)

    def _bin(self, at_s: float) -> int:
        number = int(at_s / self._bin_s)
        self._last = max(self._last, number)
        return number

    def _spread(self, bins: defaultdict[int, float], first_s: float, last_s: float, amount: float) -> None:
        """Evenly over the interval; each bin gets its part over its width."""
        first, last = self._bin(first_s), self._bin(last_s)
        for number in range(first, last + 1):
            inside_s = min(last_s, (number + 1) * self._bin_s) - max(first_s, number * self._bin_s)
            share = inside_s / (last_s - first_s) if last_s > first_s else 1.0
            bins[number] += amount * share / self._bin_s

    def _held(self, request: SimRequest) -> None:
        """The prompt from its admission, and its output as it grows."""
        prompt, output = request.arrival.input_tokens, request.arrival.output_tokens
        for number in range(self._bin(request.admitted_s), self._bin(request.finish_s) + 1):
            at_s = (number + 0.5) * self._bin_s
            if request.admitted_s <= at_s < request.finish_s:
                grown = (at_s - request.first_token_s) / max(request.finish_s - request.first_token_s, 1e-9)
                self._kv[number] += prompt + output * max(0.0, grown)

    def timeline(self) -> Timeline:
        bins = range(self._last + 1)

        def rows(of: str) -> dict[str, list[float]]:
            return {name: [getattr(self._tenants[name], of)[b] for b in bins] for name in sorted(self._tenants)}

        return Timeline(
            bin_s=self._bin_s,
            times_s=[(number + 0.5) * self._bin_s for number in bins],
            service_rate=rows("service"),
            demand_rate=rows("demand"),
            response_s={name: _means(self._tenants[name].response_s, bins) for name in sorted(self._tenants)},
            queue=rows("waiting_s"),
            kv_tokens=[self._kv[number] for number in bins],
        )


def _means(values: defaultdict[int, list[float]], bins: range) -> list[float | None]:
    return [sum(values[b]) / len(values[b]) if values[b] else None for b in bins]
