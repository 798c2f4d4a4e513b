"""The 0.9 quantile of actual over predicted waits, with requests that still wait as censored observations.

A prediction that fails is noticed late if only dispatches count: while the engine hangs, nothing is dispatched. So the
sample is the ratio of each of the last 200 dispatches, and of every request that already waits longer than predicted
its ratio so far, a lower bound of the final one.

The ratios from 1.1 to 4 are counted in classes that are 5 % wide. A request that still waits moves from class to class
at times that are known when it is predicted: arrival + predicted x the class's upper end. A heap holds the next move of
each. The quantile is the upper end of its class, so it is at most 5 % too high, and never above 4.

Deviation from QLM: section 6 has no correction; its estimate is meant to be conservative. Online conformal correction
(steps towards the coverage) diverged on the measured runs: a queue that grows gives many late answers to one error.

Costs: O(log n) for each arrival, dispatch and move, at most 28 moves per request; O(28) for a quantile. Memory: 200
classes, and at most three entries for each waiting request. Units: seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, inf, log

DISPATCHES = 200
RATIO_MIN = 1.1
RATIO_MAX = 4.0
_QUANTILE = 0.9
PRIOR_RATIO = 1.5
"""The quantile before there is any observation."""
_STEPS = ceil(log(RATIO_MAX / RATIO_MIN) / log(1.05))
_ENDS = [min(RATIO_MAX, RATIO_MIN * 1.05**step) for step in range(_STEPS)] + [RATIO_MAX]
"""Upper ends of the classes. What is above the last end is counted in the last class."""
_ROUNDING = 1e-9
"""Subtracted before rounding a rank up (policies/percentiles.py)."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """`ratio_class`: -1 until the request waits longer than predicted."""

    since_s: float
    predicted_s: float
    ratio_class: int = -1

    @property
    def next_move_s(self) -> float:
        if self.ratio_class < 0:
            return self.since_s + self.predicted_s
        if self.ratio_class >= len(_ENDS) - 1:
            return inf
        return self.since_s + self.predicted_s * _ENDS[self.ratio_class]


class WaitRatios:
    """The sample of ratios. A time that goes back moves no request; its ratio is at least 0."""

    def __init__(self) -> None:
        self._counts = [0] * len(_ENDS)
        self._dispatched: deque[int] = deque()
        self._waiting: dict[str, _Waiting] = {}
        self._moves: list[tuple[float, str]] = []
        self._overdue = 0

    def __len__(self) -> int:
        """Return the number of observations."""
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
        waiting = self._waiting[request_id] = _Waiting(now, predicted_s)
        heappush(self._moves, (waiting.next_move_s, request_id))

    def on_dispatched(self, request_id: str, now: float) -> None:
        """The request's wait is over: its ratio replaces the oldest of the last 200."""
        waiting = self._remove(request_id)
        if waiting is None:
            return
        if len(self._dispatched) == DISPATCHES:
            self._counts[self._dispatched.popleft()] -= 1
        ratio = max(0.0, now - waiting.since_s) / waiting.predicted_s
        self._dispatched.append(min(bisect_left(_ENDS, ratio), len(_ENDS) - 1))
        self._counts[self._dispatched[-1]] += 1

    def on_left(self, request_id: str) -> None:
        """Forget a request that left the queue without a dispatch."""
        self._remove(request_id)

    def quantile(self, now: float) -> float:
        """Return the 0.9 quantile of the ratios at `now`, between 1.1 and 4."""
        self._move_until(now)
        if not len(self):
            return PRIOR_RATIO
        rank = max(1, ceil(_QUANTILE * len(self) - _ROUNDING))
        for count, end in zip(self._counts, _ENDS, strict=True):
            rank -= count
            if rank <= 0:
                return end
        return RATIO_MAX

    def _remove(self, request_id: str) -> _Waiting | None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and waiting.ratio_class >= 0:
            self._counts[waiting.ratio_class] -= 1
            self._overdue -= 1
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
            if waiting.ratio_class < 0:
                self._overdue += 1
            else:
                self._counts[waiting.ratio_class] -= 1
            waiting.ratio_class += 1
            self._counts[waiting.ratio_class] += 1
            heappush(self._moves, (waiting.next_move_s, request_id))
