"""The service difference of a run, as the VTC paper defines it (section 5.1), measured as the requests end.

h is a request's service (input + 2 x output, unless another service function is chosen), T the horizon. There are 30 s
of warm-up, and windows of 60 s around 19 points t_i = 30 + (T - 30) / 20 x i:

    service rate of a tenant at t_i    each served request's h, spread evenly from its first token to its last; the
                                       part within the window, over 60
    request rate                       h of the requests that arrive in the window and are not rejected, over 60
    service difference at t_i          sum over tenants of min(highest service rate - its own,
                                       |its request rate - its service rate|)

`max`, `avg` and `var` are over the 19 points. Below T = 90 s there is no service difference: a window would hold most
of the run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from math import ceil
from statistics import fmean, pvariance

WARM_UP_S = 30.0
HALF_WINDOW_S = 30.0
POINTS = 19
HORIZON_MIN_S = 90.0
_NO_POINTS = range(0)


@dataclass(frozen=True, slots=True)
class Difference:
    """Service difference over the sample points, in service units a second (`var`: squared)."""

    max: float
    avg: float
    var: float


class MeasuredRates:
    """Service and request rates of every tenant at the sample points."""

    def __init__(self, horizon_s: float) -> None:
        self._every_s = (horizon_s - WARM_UP_S) / (POINTS + 1)
        self._ends_s = [self._middle_s(point) + HALF_WINDOW_S for point in range(POINTS)]
        """The ends of the windows."""
        self._service: dict[str, array[float]] = {}
        self._requested: dict[str, array[float]] = {}

    def on_ended(self, tenant: str, sent_s: float, first_s: float, last_s: float, service: float) -> None:
        """Add a request of `service` units, with the times when it was sent and of its first and last token."""
        window = bisect_left(self._ends_s, sent_s)
        if window < POINTS and last_s >= self._ends_s[window] - 2 * HALF_WINDOW_S:
            self.on_requested(tenant, sent_s, service)
            self.on_served(tenant, first_s, last_s, service)

    def on_requested(self, tenant: str, at_s: float, service: float) -> None:
        row = self._requested.get(tenant)
        if row is None:
            row = self._requested[tenant] = array("d", bytes(8 * POINTS))
        for point in self._points(at_s, at_s):
            if at_s < self._middle_s(point) + HALF_WINDOW_S:
                row[point] += service / (2 * HALF_WINDOW_S)

    def on_served(self, tenant: str, first_s: float, last_s: float, service: float) -> None:
        row = self._service.get(tenant)
        if row is None:
            row = self._service[tenant] = array("d", bytes(8 * POINTS))
        for point in self._points(first_s, last_s):
            middle_s = self._middle_s(point)
            inside_s = min(last_s, middle_s + HALF_WINDOW_S) - max(first_s, middle_s - HALF_WINDOW_S)
            share = inside_s / (last_s - first_s) if last_s > first_s else 1.0
            row[point] += service * share / (2 * HALF_WINDOW_S)

    def _middle_s(self, point: int) -> float:
        return WARM_UP_S + self._every_s * (point + 1)

    def _points(self, first_s: float, last_s: float) -> range:
        """Return the points with windows that touch the interval."""
        first = ceil((first_s - HALF_WINDOW_S - WARM_UP_S) / self._every_s) - 1
        last = int((last_s + HALF_WINDOW_S - WARM_UP_S) // self._every_s)
        return range(max(first, 0), min(last, POINTS)) if first < last else _NO_POINTS

    def difference(self) -> Difference:
        nothing = array("d", bytes(8 * POINTS))
        tenants = sorted(self._requested.keys() | self._service.keys())
        at_points = []
        for point in range(POINTS):
            served = [self._service.get(tenant, nothing)[point] for tenant in tenants]
            requested = [self._requested.get(tenant, nothing)[point] for tenant in tenants]
            highest = max(served, default=0.0)
            at_points.append(sum(min(highest - s, abs(r - s)) for s, r in zip(served, requested, strict=True)))
        return Difference(max(at_points), fmean(at_points), pvariance(at_points))
