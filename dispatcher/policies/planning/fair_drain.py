"""How much service a fair order delivers before one request of one tenant.

Under BWFQ, a tenant of weight w behind `own` service of its own queue waits until every other queue j has received as
much per weight, or is empty. With b_j the service waiting in queue j, λ_j its forecast arrivals, and v = own / w:

    ahead(T) = Σ_j min(b_j + λ_j min(T, H), v w_j)         service of others in the next T seconds
    T Θ = before + ahead(T)                                the first T at which the request is next

If every b_j is large this is the weighted share of Θ: T = own (w + Σ w_j) / (w Θ). A queue that ends earlier leaves its
part to the others (max-min fairness), which a share counted once, at arrival, misses.

Source: the fluid model of weighted fair queueing, as BWFQ's V follows it (clocks.py). QLM's equation 2 counts every
request before this one in a single virtual queue, which is the case of first come, first served.

Deviations:
- Arrivals are a forecast: the rate of the recent past, for at most H = 120 s. QLM forecasts nothing. Without it, the
  later requests of a light tenant, which a fair order serves first, are missed; without H, a burst would last for ever.
  H was chosen on the measured `vtc` runs of one A10G (60 and 240 s gave lower R²), so they are no test of it.
- Guaranteed rates are no part of the sum. waiting.py takes the greater of the guaranteed rate and this share.

Units: service units, seconds. O(m log m) for m other queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

FORECAST_S = 120.0
"""H, and the time constant of the arrival rate: what the last two minutes brought, the next two bring again."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another tenant's queue: service that waits in it, and service per second that is forecast to arrive.

    Raises ValueError unless weight > 0 and the others are finite and not negative.
    """

    waiting: float
    arriving_per_s: float = 0.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.waiting < inf and 0 <= self.arriving_per_s < inf and 0 < self.weight < inf):
            raise ValueError(f"a queue needs a positive weight and finite service, not {self!r}")


class ArrivalRate:
    """Service per second that arrived in the recent past. An arrival costs O(1)."""

    __slots__ = ("_at_s", "_service")

    def __init__(self) -> None:
        self._at_s = -inf
        self._service = 0.0

    def arrived(self, service: float, now: float) -> None:
        """Add an arrival. A clock that goes back counts as the latest time seen."""
        self._service = self._service * self._kept(now) + service
        self._at_s = max(self._at_s, now)

    def per_s(self, now: float) -> float:
        return self._service * self._kept(now) / FORECAST_S

    def _kept(self, now: float) -> float:
        return exp(-max(0.0, now - self._at_s) / FORECAST_S)


def service_of_rivals(
    own: float,
    before: float,
    weight: float,
    rivals: Sequence[Rival],
    capacity_per_s: float,
    horizon_s: float = FORECAST_S,
) -> float:
    """Return ahead(T): the service of other queues that is delivered before the request is next.

    `own`: service of the tenant's own queue up to and with this request. `before`: service due in any case (its own
    queue without the request, plus the running batch's rest less what an admission leaves running); may be negative.
    Raises ValueError unless weight and capacity are positive and finite.
    """
    if not (0 < weight < inf and 0 < capacity_per_s < inf):
        raise ValueError(f"weight and capacity must be positive, not {weight!r} and {capacity_per_s!r}")
    level = own / weight
    next_s = min(_next_s(before, level, rivals, capacity_per_s, horizon_s), horizon_s)
    return sum(min(rival.waiting + rival.arriving_per_s * next_s, level * rival.weight) for rival in rivals)


def _next_s(before: float, level: float, rivals: Sequence[Rival], capacity_per_s: float, horizon_s: float) -> float:
    """Return the first T at which T x capacity is what is due by then, or at least the horizon if it is later."""
    due, growth = before, 0.0
    ends: list[tuple[float, float]] = []
    for rival in rivals:
        room = level * rival.weight - rival.waiting
        due += rival.waiting + min(0.0, room)
        if room > 0 and rival.arriving_per_s > 0:
            growth += rival.arriving_per_s
            ends.append((room / rival.arriving_per_s, rival.arriving_per_s))
    if due <= 0:
        return 0.0
    since_s = 0.0
    for end_s, rate_per_s in sorted(ends):
        at_end = due + growth * (end_s - since_s)
        if end_s >= horizon_s or at_end <= capacity_per_s * end_s:
            break
        due, since_s, growth = at_end, end_s, growth - rate_per_s
    net_per_s = capacity_per_s - growth
    return max(since_s, (due - growth * since_s) / net_per_s) if net_per_s > 0 else horizon_s
