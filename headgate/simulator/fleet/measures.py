"""The measures of a fleet's run, by SLO class and tenant: requests in time, and the time to the first token."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.simulator.fleet.requests import FleetRequest
from headgate.simulator.measures.percentiles import Percentiles, percentiles


@dataclass(frozen=True, slots=True)
class InTime:
    """`in_time`: the part of all requests that had their first token when it was due; a refused one had none.

    `first_token_s`: of the served requests; None without one.
    """

    requests: int
    served: int
    in_time: float
    first_token_s: Percentiles | None


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    in_time: int = 0
    first_token_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, request: FleetRequest) -> None:
        self.requests += 1
        self.in_time += request.is_in_time
        if request.request.served:
            self.first_token_s.append(request.request.ttft_s)

    def measures(self) -> InTime:
        part = self.in_time / self.requests if self.requests else 0.0
        return InTime(self.requests, len(self.first_token_s), part, percentiles(self.first_token_s))


class FleetCollector:
    """Each request is reported once, when it has ended."""

    def __init__(self) -> None:
        self.tokens = 0
        self.total_time_s = 0.0
        self.rejections: dict[str, int] = {}
        self._sums: dict[tuple[str, str], _Sums] = {}

    def ended(self, request: FleetRequest) -> None:
        arrival = request.request.arrival
        self._sums.setdefault((arrival.tenant, request.slo_class), _Sums()).add(request)
        if request.request.served:
            self.tokens += arrival.input_tokens + arrival.output_tokens
            self.total_time_s = max(self.total_time_s, request.request.finish_s)
        else:
            reason = request.request.rejected or "unknown"
            self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def all(self) -> InTime:
        return _together(self._sums.values())

    def by_class(self) -> dict[str, InTime]:
        names = sorted({slo_class for _, slo_class in self._sums})
        return {name: _together(sums for (_, one), sums in self._sums.items() if one == name) for name in names}

    def by_tenant(self) -> dict[str, InTime]:
        names = sorted({tenant for tenant, _ in self._sums})
        return {name: _together(sums for (one, _), sums in self._sums.items() if one == name) for name in names}


def _together(parts: Iterable[_Sums]) -> InTime:
    whole = _Sums()
    for part in parts:
        whole.requests += part.requests
        whole.in_time += part.in_time
        whole.first_token_s.extend(part.first_token_s)
    return whole.measures()
