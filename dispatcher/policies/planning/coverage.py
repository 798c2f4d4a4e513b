"""Moves announced quantiles until they cover what they promise, whatever the estimates do. Pure.

An estimate that is wrong to one side by a little misses its coverage by much where waits scatter little, and it stays
wrong while the load drifts. So each announced quantile has a level x, which moves with each outcome:

    announced = estimate x e^(x spread)        x <- x + g (alpha - covered)

alpha: 0.5 or 0.9. covered: 1 if the wait was no longer than announced, else 0. spread: the standard deviation of the
logarithm of the wait, as the estimate has it, within bounds. For any sequence of waits, the sum of g (alpha - covered)
is the change of x. So as long as x is within LIMIT, the coverage, weighted by g, differs from alpha by at most
2 LIMIT / sum of g.

An outcome is known when the wait ends or exceeds what was announced, whichever is first: a request that still waits is
a miss as soon as its time has passed. Until then the request is open. While many are open, all of them answer to one
level, and full steps would overshoot, again and again. So g = 1 / (OPEN + the open requests), as they are when it is
announced. The level moves by about a spread in the time of one wait or of OPEN outcomes, whichever is longer; waits as
long as the load itself get little of it. For 0.9 g is larger, by the ratio of the normal densities at both quantiles:
there a spread changes the coverage by less, and equal steps would take longer.

A wait that ends when its median said, to the millisecond, as the rest of a swap does, is neither within it nor beyond.

Sources: Gibbs and Candes, Adaptive Conformal Inference (NeurIPS 2021), equation 2; Angelopoulos, Candes and Tibshirani,
Conformal PID Control (NeurIPS 2023), section 2, for a level of the score in place of alpha, and for the bound.
Deviations: the step is divided by the open requests, the level is in spreads, and it stays within LIMIT.

Costs: O(log n) for each request and O(1) for a quantile. Memory: two entries for each open request. Units: seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import exp, inf, log

from dispatcher.policies.planning.wait_ratios import Quantiles

OPEN = 20.0
"""So many requests count as open beside those that are."""
LIMIT = 2.0
"""A level stays within so many spreads."""
EXACT_S = 0.001
_SPREAD_LEAST, _SPREAD_MOST = 0.02, 0.5
"""Bounds of a spread. A wide estimate is moved by no more than e to the power of LIMIT x the greatest spread."""
_P90_DEVIATIONS = 1.28
"""The 0.9 quantile of the normal distribution."""
_P90_PACE = exp(_P90_DEVIATIONS**2 / 2)
_ENTRIES_SPARE = 200


@dataclass(slots=True)
class Level:
    """`covers`: alpha. `pace`: the step beside that of the median. `at`: x. `open`: the requests whose outcome is not
    known."""

    covers: float
    pace: float = 1.0
    at: float = 0.0
    open: int = 0

    def begin(self) -> float:
        """Count an open request, and return its g."""
        self.open += 1
        return self.pace / (OPEN + self.open)

    def see(self, covered: float, step: float) -> None:
        """Move by an outcome: 1 within what was announced, 0 beyond."""
        self.open -= 1
        self.at = min(LIMIT, max(-LIMIT, self.at + step * (self.covers - covered)))


@dataclass(slots=True, eq=False)
class _Announced:
    """An open request. `p50_step`, `p90_step`: g. The booleans tell which outcome is known already."""

    since_s: float
    p50_s: float
    p90_s: float
    p50_step: float
    p90_step: float
    is_p50_known: bool = False
    is_p90_known: bool = False


@dataclass(slots=True)
class Coverage:
    """The levels of requests of one kind."""

    p50: Level = field(default_factory=lambda: Level(0.5))
    p90: Level = field(default_factory=lambda: Level(0.9, _P90_PACE))
    _open: dict[str, _Announced] = field(default_factory=dict)
    _due: list[tuple[float, str]] = field(default_factory=list)
    """When each open request exceeds what was announced next."""

    @classmethod
    def like(cls, other: Coverage) -> Coverage:
        """Return one that begins with the other's levels: of a part of its requests."""
        found = cls()
        found.p50.at, found.p90.at = other.p50.at, other.p90.at
        return found

    def __len__(self) -> int:
        """Return the number of open requests."""
        return len(self._open)

    def move(self, estimate: Quantiles, now: float) -> Quantiles:
        """Return the quantiles to announce."""
        self._pass(now)
        p10, p50, p90 = estimate
        if not (0.0 < p10 <= p50 <= p90 < inf):
            return estimate
        p50 *= exp(self.p50.at * _spread(p10, p90, 2 * _P90_DEVIATIONS))
        p90 *= exp(self.p90.at * _spread(estimate.p50, p90, _P90_DEVIATIONS))
        return Quantiles(min(p10, p50), p50, max(p50, p90))

    def on_announced(self, request_id: str, p50_s: float, p90_s: float, now: float) -> None:
        """Follow a request that waits from now on."""
        self.on_left(request_id)
        self._open[request_id] = _Announced(now, p50_s, p90_s, self.p50.begin(), self.p90.begin())
        heappush(self._due, (now + p50_s + EXACT_S, request_id))

    def on_dispatched(self, request_id: str, now: float) -> None:
        """The request's wait is over."""
        self._pass(now)
        announced = self._open.pop(request_id, None)
        if announced is None:
            return
        waited_s = now - announced.since_s
        if not announced.is_p50_known:
            self.p50.see(0.5 if waited_s >= announced.p50_s - EXACT_S else 1.0, announced.p50_step)
        if not announced.is_p90_known:
            self.p90.see(1.0, announced.p90_step)
        self._forget_old()

    def on_left(self, request_id: str) -> None:
        """Forget a request that left the queue without a dispatch."""
        announced = self._open.pop(request_id, None)
        if announced is not None:
            self.p50.open -= not announced.is_p50_known
            self.p90.open -= not announced.is_p90_known
            self._forget_old()

    def _pass(self, now: float) -> None:
        """Count the requests that wait longer than announced as misses."""
        while self._due and self._due[0][0] < now:
            at_s, request_id = heappop(self._due)
            announced = self._open.get(request_id)
            if announced is None or at_s != self._next_s(announced):
                continue
            if not announced.is_p50_known:
                announced.is_p50_known = True
                self.p50.see(0.0, announced.p50_step)
                heappush(self._due, (self._next_s(announced), request_id))
            elif not announced.is_p90_known:
                announced.is_p90_known = True
                self.p90.see(0.0, announced.p90_step)

    @staticmethod
    def _next_s(announced: _Announced) -> float:
        bound_s = announced.p90_s if announced.is_p50_known else announced.p50_s
        return announced.since_s + bound_s + EXACT_S

    def _forget_old(self) -> None:
        if len(self._due) > 2 * len(self._open) + _ENTRIES_SPARE:
            self._due = [(self._next_s(each), name) for name, each in self._open.items() if not each.is_p90_known]
            heapify(self._due)


def _spread(low: float, high: float, deviations: float) -> float:
    """Return the standard deviation of the logarithm of the wait, by two quantiles that are so many of it apart."""
    return min(_SPREAD_MOST, max(_SPREAD_LEAST, log(high / low) / deviations))
