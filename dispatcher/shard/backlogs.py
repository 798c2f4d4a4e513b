"""What a fair order gives to the queues of one model while each receives so much service per weight (waits.py).

With b the service that waits in a queue of weight w, all queues together receive Σ min(b, v w) until each has had v per
weight or is empty: the fluid model of weighted fair queueing (policies/planning/fair_drain.py). Sums over the queues in
the order of b / w answer this in O(log queues).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from math import inf
from typing import NamedTuple


class Queued(NamedTuple):
    """One queue: its tenant's weight, the service that waits in it, and the service that is forecast to arrive."""

    weight: float
    waiting: float
    arriving: float


class Backlogs:
    """The service of the queues of one model and one rank (tier, or deferred)."""

    __slots__ = ("_levels", "_served", "_weights", "of", "total")

    def __init__(self, of: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """`of`: service by tenant. `weights`: the tenants' weights, above 0."""
        ordered = sorted((service / weights[tenant], service, weights[tenant]) for tenant, service in of.items())
        self._levels = [level for level, _, _ in ordered]
        self._served = [0.0, *accumulate(service for _, service, _ in ordered)]
        self._weights = [0.0, *accumulate(weight for _, _, weight in ordered)]
        self.of = of
        self.total = self._served[-1]

    def given(self, level: float, tenant: str, own: float) -> float:
        """Return what the other queues get until the tenant's queue has got `own`, which is `level` per weight."""
        part = self.of.get(tenant, 0.0)
        if part > own:
            part = own
        if level == inf:
            return self.total - part
        empty = bisect_right(self._levels, level)
        served, weights = self._served, self._weights
        others = served[empty] + level * (weights[-1] - weights[empty]) - part
        return others if others > 0.0 else 0.0


NOTHING = Backlogs({}, {})


def sums(queues: Mapping[str, Queued]) -> tuple[Backlogs, Backlogs]:
    """Return the backlogs of the queues by tenant: what waits, and this with what is forecast to arrive."""
    weights = {tenant: queue.weight for tenant, queue in queues.items()}
    waiting = {tenant: queue.waiting for tenant, queue in queues.items()}
    later = {tenant: queue.waiting + queue.arriving for tenant, queue in queues.items()}
    return Backlogs(waiting, weights), Backlogs(later, weights)
