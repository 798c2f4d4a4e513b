"""What the planner expects of a tenant's next arrivals. Pure and bounded.

An exponentially weighted rate. With the time constant T, each arrival of s service units adds s / T to the
tenant's rate, and the rate falls by the factor exp(-t / T) in t seconds. The rate of a steady tenant is its true rate
after some T, and lower before: a tenant without history has the rate 0. The forecast is never more than what arrived in
the past, so one burst does not announce a larger one.

Times are passed in. A time before the last one counts as the last one. The least recently used entry is dropped when
there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from math import exp, inf

TIME_CONSTANT_S = 60.0
"""T: as long as the horizon of the entitlement."""
TENANTS_MAX = 10_000


class ArrivalForecast:
    """The expected arrivals of each tenant, in service units. Raises ValueError unless both bounds are positive.

    Record the arrivals of classes that are not deferred only: deferred work claims nothing before it is urgent.
    """

    def __init__(self, time_constant_s: float = TIME_CONSTANT_S, tenants_max: int = TENANTS_MAX) -> None:
        if not 0 < time_constant_s < inf or tenants_max < 1:
            raise ValueError(f"bounds must be positive, not {time_constant_s!r} s and {tenants_max!r} tenants")
        self._time_constant_s = time_constant_s
        self._tenants_max = tenants_max
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Service per second, and the time of the last arrival."""

    def __len__(self) -> int:
        return len(self._rates)

    def record(self, tenant: str, service: float, now: float) -> None:
        """Count an arrival. Raises ValueError if the service is negative or not finite."""
        if not 0 <= service < inf:
            raise ValueError(f"service must be zero or a positive number, not {service!r}")
        rate_per_s, last = self._rates.get(tenant, (0.0, now))
        kept = rate_per_s * self._decay(now - last)
        self._rates[tenant] = kept + service / self._time_constant_s, max(now, last)
        self._rates.move_to_end(tenant)
        if len(self._rates) > self._tenants_max:
            self._rates.popitem(last=False)

    def service(self, tenant: str, now: float, horizon_s: float) -> float:
        """Return the service expected to arrive in the next `horizon_s` seconds; 0 without history."""
        rate_per_s, last = self._rates.get(tenant, (0.0, now))
        return rate_per_s * self._decay(now - last) * horizon_s

    def _decay(self, elapsed_s: float) -> float:
        return exp(-max(0.0, elapsed_s) / self._time_constant_s)
