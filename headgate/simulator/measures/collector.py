"""Measures a run as its requests end. It keeps two numbers of each request, and not the requests."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from dispatcher.policies.service import ServiceFunction
from headgate.simulator.measures.percentiles import Percentiles, percentiles
from headgate.simulator.measures.service_difference import HORIZON_MIN_S, Difference, MeasuredRates
from headgate.simulator.measures.timeline import Timeline, TimelineCollector
from headgate.simulator.requests import SimRequest


@dataclass(frozen=True, slots=True)
class TenantMeasures:
    """`service`: service units of the served requests. The percentiles are None if no request was served."""

    requests: int
    served: int
    rejected: int
    service: float
    ttft_s: Percentiles | None
    latency_s: Percentiles | None


@dataclass(slots=True)
class _Tenant:
    requests: int = 0
    rejected: int = 0
    service: float = 0.0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    latency_s: array[float] = field(default_factory=lambda: array("d"))


class Collector:
    """`horizon_s`: T of the service difference. Each request is reported once, when it has ended."""

    def __init__(self, service: ServiceFunction, horizon_s: float, *, timeline: bool = False) -> None:
        self.service = service
        self.total_time_s = 0.0
        self.tokens = 0
        self.rejections: dict[str, int] = {}
        self._rates = MeasuredRates(horizon_s) if horizon_s >= HORIZON_MIN_S else None
        self._timeline = TimelineCollector(horizon_s) if timeline else None
        self._tenants: dict[str, _Tenant] = {}

    def rejected(self, request: SimRequest) -> None:
        tenant = self._tenant(request.tenant)
        tenant.rejected += 1
        reason = request.rejected or "unknown"
        self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def served(self, request: SimRequest) -> None:
        arrival = request.arrival
        service = self.service(arrival.input_tokens, arrival.output_tokens)
        tenant = self._tenant(arrival.tenant)
        tenant.service += service
        tenant.ttft_s.append(request.ttft_s)
        tenant.latency_s.append(request.latency_s)
        self.tokens += arrival.input_tokens + arrival.output_tokens
        self.total_time_s = max(self.total_time_s, request.finish_s)
        if self._rates is not None:
            self._rates.requested(arrival.tenant, request.release_s, service)
            self._rates.served(arrival.tenant, request.first_token_s, request.finish_s, service)
        if self._timeline is not None:
            self._timeline.served(request, service)

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant()
        tenant.requests += 1
        return tenant

    def difference(self) -> Difference | None:
        return None if self._rates is None else self._rates.difference()

    def timeline(self) -> Timeline | None:
        return None if self._timeline is None else self._timeline.timeline()

    def tenants(self) -> dict[str, TenantMeasures]:
        return {
            name: TenantMeasures(
                tenant.requests,
                len(tenant.ttft_s),
                tenant.rejected,
                tenant.service,
                percentiles(tenant.ttft_s),
                percentiles(tenant.latency_s),
            )
            for name, tenant in sorted(self._tenants.items())
        }
