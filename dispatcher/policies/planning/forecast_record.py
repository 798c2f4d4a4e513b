"""Compares what plans forecast with what follows: the error of the forward model (forward.py). Pure and bounded.

A plan that was played forward forecasts, for each tenant within its share, the part of its requests of the next
`forecast_s` seconds that starts late. One forecast is followed at a time. Its requests are those that start before its
end, and those that are due before its end and start later or still wait then: these are late.

    error = sum over tenants of requests x |forecast - actual part in time| / requests

The plan is made anew every few seconds, so the fleet does not follow the rule that was forecast to its end. The error
has the errors of the model, of the expected arrivals, and this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

TENANTS_MAX = 1_000
"""So many tenants have sums of their own. Further ones count in the sums of all."""


@dataclass(slots=True)
class ForecastSums:
    """`forecast`: the requests of which plans forecast that they start in time; `error`: of the absolute errors."""

    requests: int = 0
    in_time: int = 0
    forecast: float = 0.0
    error: float = 0.0

    def add(self, requests: int, in_time: int, late_part: float) -> None:
        """Count a tenant's requests under one forecast."""
        forecast = requests * (1.0 - late_part)
        self.requests += requests
        self.in_time += in_time
        self.forecast += forecast
        self.error += abs(forecast - in_time)

    def include(self, other: ForecastSums) -> None:
        """Add other sums."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def error_part(self) -> float:
        return self.error / max(1, self.requests)


class ForecastRecord:
    """`all`, `tenants`: the sums of the forecasts that ended. Times are Unix seconds."""

    def __init__(self) -> None:
        self.all = ForecastSums()
        self.tenants: dict[str, ForecastSums] = {}
        self.ended = 0
        """This counts the forecasts that ended."""
        self._late_parts: Mapping[str, float] = {}
        self._starts: dict[str, list[int]] = {}
        """This has by tenant the requests, and those in time."""
        self.ends_at = -inf

    @property
    def is_open(self) -> bool:
        return bool(self._late_parts)

    def begin(self, late_parts: Mapping[str, float], forecast_s: float, now: float) -> None:
        """Follow a forecast, unless one is followed. `late_parts`: by tenant."""
        if not self.is_open and late_parts:
            self._late_parts, self._starts, self.ends_at = late_parts, {}, now + forecast_s

    def on_started(self, tenant: str, due_at: float, now: float) -> None:
        """Count a request that gets its first slot."""
        if tenant in self._late_parts and (now <= self.ends_at or due_at < self.ends_at):
            counts = self._starts.setdefault(tenant, [0, 0])
            counts[0] += 1
            counts[1] += now <= min(due_at, self.ends_at)

    def end(self, overdue: Mapping[str, int]) -> None:
        """Compare the forecast with what came. `overdue`: by tenant, its waiting requests that were due before the
        forecast's end."""
        for tenant, late_part in self._late_parts.items():
            requests, in_time = self._starts.get(tenant, (0, 0))
            requests += overdue.get(tenant, 0)
            if requests:
                self.all.add(requests, in_time, late_part)
                if tenant in self.tenants or len(self.tenants) < TENANTS_MAX:
                    self.tenants.setdefault(tenant, ForecastSums()).add(requests, in_time, late_part)
        self.ended += 1
        self._late_parts, self._starts = {}, {}
