"""What the planner expects from the past: output lengths of a group, and a tenant's next arrivals. Pure and bounded.

**Output lengths**, from finished requests only. Units: tokens. Source: QLM (SoCC 2024), section 6: the mean μ and the
deviation σ of a group's outputs come from its history.

Deviations from QLM:
- QLM fits μ and σ once from a data set. Here old observations fade, so that a tenant whose prompts change is followed.
- QLM assumes a history. A group without one starts from a prior that counts as two observations: the lengths of the
  whole queue, or half of max_tokens if no request has ended yet.

**Arrivals** have an exponentially weighted rate. With the time constant T, each arrival of s service units adds s / T
to the tenant's rate, and the rate falls by the factor exp(-t / T) in t seconds. The rate of a steady tenant is its true
rate after some T, and lower before: a tenant without history has the rate 0. The forecast is never more than what
arrived in the past, so one burst does not announce a larger one.

Times are passed in. A time before the last one counts as the last one. The least recently used entry is dropped when
there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import NamedTuple

MEMORY = 200.0
"""Number of observations that the statistics effectively remember."""
_PRIOR_OBSERVATIONS = 2.0
_KEYS_MAX = 10_000
"""Groups with a history. Bounds the memory when requests name many models."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean and standard deviation of output lengths, in tokens. Raises ValueError if one is negative or not finite."""

    output_mean: float
    output_deviation: float

    def __post_init__(self) -> None:
        if not (0 <= self.output_mean < inf and 0 <= self.output_deviation < inf):
            raise ValueError(f"mean and deviation must be finite and not negative, not {self!r}")


def lengths_without_history(max_tokens: float) -> Lengths:
    """Return the prior for requests that may generate up to `max_tokens`: a uniform length, half of it in the mean."""
    return Lengths(max_tokens / 2, max_tokens / sqrt(12))


class LengthHistory:
    """The lengths of finished requests of one group. Three numbers; an observation costs O(1)."""

    __slots__ = ("_count", "_squares", "_sum")

    def __init__(self) -> None:
        self._count = 0.0
        self._sum = 0.0
        self._squares = 0.0

    def observe(self, output_tokens: float) -> None:
        """Add a finished request. Raises ValueError if its length is negative or not finite."""
        if not 0 <= output_tokens < inf:
            raise ValueError(f"output_tokens must be finite and not negative, not {output_tokens!r}")
        keep = 1 - 1 / MEMORY
        self._count = self._count * keep + 1
        self._sum = self._sum * keep + output_tokens
        self._squares = self._squares * keep + output_tokens**2

    def lengths(self, prior: Lengths) -> Lengths:
        """Return mean and deviation of the history together with the prior."""
        count = self._count + _PRIOR_OBSERVATIONS
        squares = self._squares + _PRIOR_OBSERVATIONS * (prior.output_mean**2 + prior.output_deviation**2)
        mean = (self._sum + _PRIOR_OBSERVATIONS * prior.output_mean) / count
        return Lengths(mean, sqrt(max(0.0, squares / count - mean**2)))


class OutputHistory:
    """The lengths of each group, by its key; the least recently used ones are dropped above `keys_max`.

    All tenants may share one, or each has its own: the owner decides. Raises ValueError unless keys_max is positive.
    """

    def __init__(self, keys_max: int = _KEYS_MAX) -> None:
        if keys_max < 1:
            raise ValueError(f"keys_max must be at least 1, not {keys_max}")
        self._keys_max = keys_max
        self._histories: OrderedDict[Hashable, LengthHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._histories)

    def observe(self, key: Hashable, output_tokens: float) -> None:
        """Add a finished request of the group. Raises ValueError if its length is negative or not finite."""
        history = self._histories.get(key) or LengthHistory()
        history.observe(output_tokens)
        self._histories[key] = history
        self._histories.move_to_end(key)
        if len(self._histories) > self._keys_max:
            self._histories.popitem(last=False)

    def lengths(self, key: Hashable, prior: Lengths) -> Lengths:
        """Return mean and deviation of the group's history together with the prior."""
        history = self._histories.get(key)
        return prior if history is None else history.lengths(prior)


_TIME_CONSTANT_S = 60.0
"""T: as long as the horizon of the entitlement."""
TENANTS_MAX = 10_000
_SILENT_ARRIVALS = 3.0
"""After s seconds without an arrival the rate is at most 3 / s: a Poisson process of a greater rate is silent for so
long with a probability below 5 %, the "rule of three"."""
_SEEN_MIN_S = 10.0
"""A tenant counts as seen for at least so long: one request announces no further one in the next second."""


class Expected(NamedTuple):
    """Arrivals to come: how many a second, the service of each, and the seconds until each is due. `seen`: the
    arrivals that this is known from, older ones in part."""

    requests_per_s: float
    service: float
    due_s: float
    seen: float = inf


@dataclass(slots=True)
class _Arrivals:
    """The last time, the first one, and sums that fade: of service, requests and seconds until they are due."""

    last: float
    first: float
    service: float = 0.0
    requests: float = 0.0
    due_s: float = 0.0

    def fade(self, part: float) -> None:
        self.service, self.requests, self.due_s = self.service * part, self.requests * part, self.due_s * part


class ArrivalForecast:
    """The expected arrivals of each tenant, in service units. Raises ValueError unless both bounds are positive.

    Record the arrivals of classes that are not deferred only: deferred work claims nothing before it is urgent.
    """

    def __init__(self, time_constant_s: float = _TIME_CONSTANT_S, tenants_max: int = TENANTS_MAX) -> None:
        if not 0 < time_constant_s < inf or tenants_max < 1:
            raise ValueError(f"bounds must be positive, not {time_constant_s!r} s and {tenants_max!r} tenants")
        self._time_constant_s = time_constant_s
        self._tenants_max = tenants_max
        self._seen: OrderedDict[str, _Arrivals] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def tenants(self) -> list[str]:
        return list(self._seen)

    def record(self, tenant: str, service: float, now: float, due_s: float = 0.0) -> None:
        """Count an arrival, which is due in `due_s`. Raises ValueError if the service is negative or not finite."""
        if not 0 <= service < inf:
            raise ValueError(f"service must be zero or a positive number, not {service!r}")
        seen = self._seen.get(tenant)
        if seen is None:
            seen = self._seen[tenant] = _Arrivals(now, now)
        seen.fade(self._decay(now - seen.last))
        seen.last = max(now, seen.last)
        seen.service += service
        seen.requests += 1.0
        seen.due_s += due_s
        self._seen.move_to_end(tenant)
        if len(self._seen) > self._tenants_max:
            self._seen.popitem(last=False)

    def service(self, tenant: str, now: float, horizon_s: float) -> float:
        """Return the service expected to arrive in the next `horizon_s` seconds; 0 without history."""
        seen = self._seen.get(tenant)
        return 0.0 if seen is None else seen.service / self._time_constant_s * self._decay(now - seen.last) * horizon_s

    def arrivals(self, tenant: str, now: float) -> Expected | None:
        """Return the arrivals to come; None without history. The rate is that of a tenant that began at its first
        arrival: so it is right before T has passed too, and larger than that of `service` then. A stream that ends is
        noticed by its silence, not by T."""
        seen = self._seen.get(tenant)
        if seen is None or seen.requests <= 0:
            return None
        filled = 1.0 - self._decay(max(_SEEN_MIN_S, now - seen.first))
        requests = seen.requests * self._decay(now - seen.last)
        per_s = requests / self._time_constant_s / filled
        if now > seen.last:
            per_s = min(per_s, _SILENT_ARRIVALS / (now - seen.last))
        each = seen.service / seen.requests, seen.due_s / seen.requests
        return Expected(per_s, *each, requests)

    def _decay(self, elapsed_s: float) -> float:
        return exp(-max(0.0, elapsed_s) / self._time_constant_s)
