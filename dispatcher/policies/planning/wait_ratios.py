"""Quantiles of actual over predicted waits, with requests that still wait as censored observations.

A sample of finished waits alone is wrong while waits grow: those that are dispatched early are short, and while the
engine hangs nothing is dispatched. So a request that waits contributes its ratio so far, a lower bound of the final
one. The quantiles are those of the product-limit estimator (Kaplan and Meier, JASA 53, 1958):

    S(r) = Π (1 - d_i / n_i)    over the classes i up to r

d_i: dispatches with a ratio in class i. n_i: all requests, dispatched or waiting, with a ratio in class i or above.
Ratios are counted in CLASSES classes from RATIO_MIN to RATIO_MAX, each about 11 % wide. The median is the mean of the
ratios in its class, the 0.9 quantile lies between that mean and the class's upper end, and the 0.1 quantile is the
lower end of its class. A request that waits moves from
class to class at times that are known when it is predicted: arrival + predicted x the class's upper end. A heap holds
the next move of each.

A sample of few requests is completed by that of a larger group, `prior`, as so many observations: the quantile is the
geometric mean of both, weighted by their numbers. Without a larger group there is a prior of the caller's.

Requests that wait at the same time share what makes them wait longer: a hundred of one long queue are no hundred
observations. So a request counts as the time since the prediction before it, as a part of its own predicted wait and
1 at most. A sample counts as the sum of these: as the number of waits that could follow each other.

Deviation from QLM: section 6 has no correction; its estimate is meant to be conservative. What these quantiles miss,
because they are learned from waits that began a wait ago, is left to the levels of coverage.py.

Costs: O(log n) for each arrival, dispatch and move, at most CLASSES moves per request; O(CLASSES) for the quantiles.
Memory: DISPATCHES classes, and at most three entries for each waiting request. Units: seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

DISPATCHES = 200
RATIO_MIN = 0.1
RATIO_MAX = 8.0
CLASSES = 42
_ENDS = [RATIO_MIN * (RATIO_MAX / RATIO_MIN) ** (step / CLASSES) for step in range(CLASSES)] + [RATIO_MAX]
"""Upper ends of the classes. What is above the last end is counted in the last class."""
PRIOR_OBSERVATIONS = 24.0
"""The weight of the prior beside a sample's own observations. With a third of it the ratios and the levels of
coverage.py corrected the same error twice, and went past it."""
_ROUNDING = 1e-9


class Quantiles(NamedTuple):
    """The 0.1 quantile, the median and the 0.9 quantile: of actual over predicted waits, or of seconds."""

    p10: float
    p50: float
    p90: float


class RatioQuantiles(NamedTuple):
    """The quantiles of observed ratios, and their weight beside a prior, from 0 to 1. `counted_weight`: that weight if
    each request were an observation of its own."""

    own: Quantiles
    weight: float
    counted_weight: float

    def with_prior(self, prior: Quantiles) -> Quantiles:
        """Return the geometric means of these quantiles and of the prior's."""
        weight, own = self.weight, self.own
        if not weight:
            return prior
        return Quantiles(*(a**weight * b ** (1.0 - weight) for a, b in zip(own, prior, strict=True)))

    def p10_with_prior(self, prior: float) -> float:
        """Return the 0.1 quantile beside that of the prior, by the number of requests. It refuses deadlines, and must
        not forget how long a queue has waited because all of it waits at the same time."""
        mean: float = self.own.p10**self.counted_weight * prior ** (1.0 - self.counted_weight)
        return mean


_EMPTY = RatioQuantiles(Quantiles(1.0, 1.0, 1.0), 0.0, 0.0)


@dataclass(slots=True, eq=False)
class _Waiting:
    """`part`: of an observation. `ratio_class`: -1 until the first class."""

    since_s: float
    predicted_s: float
    part: float
    ratio_class: int = -1

    @property
    def next_move_s(self) -> float:
        if self.ratio_class < 0:
            return self.since_s + self.predicted_s * RATIO_MIN
        if self.ratio_class >= CLASSES:
            return inf
        return self.since_s + self.predicted_s * float(_ENDS[self.ratio_class])


class WaitRatios:
    """The sample of ratios. A time that goes back moves no request; its ratio is at least 0."""

    def __init__(self) -> None:
        self._counts = [0] * len(_ENDS)
        self._censored = [0] * len(_ENDS)
        self._sums = [0.0] * len(_ENDS)
        self._dispatched: deque[float] = deque()
        self._waiting: dict[str, _Waiting] = {}
        self._moves: list[tuple[float, str]] = []
        self._overdue = 0
        """The requests that wait longer than predicted."""
        self._parts: deque[float] = deque()
        """These are of the last dispatches."""
        self._observations = 0.0
        """The parts of the dispatches, and of the requests that wait longer than predicted."""
        self._predicted_at = -inf

    def __len__(self) -> int:
        """Return the number of dispatches, and of requests that wait longer than predicted."""
        return len(self._dispatched) + self._overdue

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def predicted(self, request_id: str, predicted_s: float, now: float) -> None:
        """Follow a request that is predicted to wait so long from now. A second prediction replaces the first.

        A wait that is not positive or not finite has no ratio and is not followed.
        """
        self.on_left(request_id)
        if not 0 < predicted_s < inf:
            return
        part = min(1.0, max(0.0, now - self._predicted_at) / predicted_s)
        self._predicted_at = now
        waiting = self._waiting[request_id] = _Waiting(now, predicted_s, part)
        heappush(self._moves, (waiting.next_move_s, request_id))

    def on_dispatched(self, request_id: str, now: float) -> None:
        """The request's wait is over: its ratio replaces the oldest of the last DISPATCHES."""
        waiting = self._remove(request_id)
        if waiting is None:
            return
        if len(self._dispatched) == DISPATCHES:
            self._count(self._dispatched.popleft(), -1)
            self._observations -= self._parts.popleft()
        self._parts.append(waiting.part)
        self._observations += waiting.part
        ratio = min(RATIO_MAX, max(0.0, now - waiting.since_s) / waiting.predicted_s)
        self._dispatched.append(ratio)
        self._count(ratio, 1)

    def on_left(self, request_id: str) -> None:
        """Forget a request that left the queue without a dispatch."""
        self._remove(request_id)

    def quantiles(self, now: float) -> RatioQuantiles:
        """Return the quantiles at `now`, to be completed by a prior."""
        self._move_until(now)
        if not (counted := len(self)):
            return _EMPTY
        weights = (each / (each + PRIOR_OBSERVATIONS) for each in (max(0.0, self._observations), counted))
        return RatioQuantiles(self._own_quantiles(), *weights)

    def _count(self, ratio: float, sign: int) -> None:
        place = bisect_left(_ENDS, ratio)
        self._counts[place] += sign
        self._sums[place] += sign * ratio

    def _own_quantiles(self) -> Quantiles:
        at_risk, remain, found = len(self._dispatched) + sum(self._censored), 1.0, list[float]()
        last = start = RATIO_MIN
        for count, total, censored, end in zip(self._counts, self._sums, self._censored, _ENDS, strict=True):
            if count:
                mean, before, remain = total / count, remain, remain * (1.0 - count / at_risk)
                if not found and remain <= 0.9 + _ROUNDING:
                    found.append(min(start, mean))
                if len(found) == 1 and remain <= 0.5 + _ROUNDING:
                    found.append(mean)
                if len(found) == 2 and remain <= 0.1 + _ROUNDING:
                    found.append(mean + (before - 0.1) / (before - remain) * (end - mean))
            if count or censored:
                last = end
            at_risk -= count + censored
            start = end
        return Quantiles(*found, *[last] * (3 - len(found)))

    def _remove(self, request_id: str) -> _Waiting | None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and waiting.ratio_class >= 0:
            self._censored[waiting.ratio_class] -= 1
            if waiting.ratio_class > _DUE:
                self._overdue -= 1
                self._observations -= waiting.part
        if len(self._moves) > 2 * len(self._waiting) + DISPATCHES:
            self._moves = [(each.next_move_s, name) for name, each in self._waiting.items()]
            heapify(self._moves)
        return waiting

    def _move_until(self, now: float) -> None:
        while self._moves and self._moves[0][0] < now:
            at_s, request_id = heappop(self._moves)
            waiting = self._waiting.get(request_id)
            if waiting is None or waiting.next_move_s != at_s:
                continue
            if waiting.ratio_class >= 0:
                self._censored[waiting.ratio_class] -= 1
            waiting.ratio_class += 1
            self._censored[waiting.ratio_class] += 1
            if waiting.ratio_class == _DUE + 1:
                self._overdue += 1
                self._observations += waiting.part
            if waiting.ratio_class < CLASSES:
                heappush(self._moves, (waiting.next_move_s, request_id))


_DUE = bisect_left(_ENDS, 1.0)
"""The class of the ratio 1."""
