"""The cheapest fleet for known arrivals: it starts each worker so early that the worker serves when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def oracle_worker_s(arrivals: Sequence[float], capacity_per_s: float, start_s: float, workers_min: int) -> float:
    """Return the paid seconds of the cheapest fleet that serves each minute's arrivals within the minute.

    Worker k is needed in each minute whose arrivals exceed the capacity of k - 1. Between two such times it stays if
    that costs less than another start-up of `start_s`. This is the optimum, since workers are alike and what one costs
    does not depend on the others. No launch fails and no worker is interrupted.
    """
    minutes = [sum(arrivals[begin : begin + 60]) / 60 for begin in range(0, len(arrivals), 60)]
    counts = [max(workers_min, ceil(each / capacity_per_s)) for each in minutes]
    return sum(_worker_s([count >= level for count in counts], start_s) for level in range(1, max(counts) + 1))


def _worker_s(needed: Sequence[bool], start_s: float) -> float:
    total, idle_s = 0.0, start_s
    for is_needed in needed:
        if is_needed:
            total, idle_s = total + 60 + min(idle_s, start_s), 0.0
        else:
            idle_s += 60
    return total
