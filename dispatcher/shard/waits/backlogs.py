"""The service that waits for each model, by rank, kept up to date queue by queue (estimate.py reads it).

A rank is a tier, or DEFERRED_RANK. A queue's service is its number of calls times the mean service of its tenant's
calls. If that mean is not known, it is the model's, which changes with every end. So such queues are counted in calls,
and the sums are multiplied by the model's mean when they are read. A tenant's forecast arrivals are added to what waits
in its queue.

Only `estimate.sum_changed` changes the sums, for the tenants in `WaitRecord.changed`. It runs before the first wait of
an entry is found, and when many tenants have changed. So an entry without such a wait costs nothing here. The sums may
contain what a decision has changed that is not written yet. If it is undone, the same tenants have changed again, so
nothing of it stays.

`Levels` tells what a fair order gives to queues while each receives so much service per weight. With b the service that
waits in a queue of weight w, all queues together receive Σ min(b, v w) until each has had v per weight or is empty: the
fluid model of weighted fair queueing (estimate.py). A queue's level is b / w. Queues are counted in classes of their
level, CLASSES to an octave. So a queue is added or removed in O(1), and the sum is found among the classes, of which
there are at most some hundreds, however many queues there are.

- The sums of a class are integers, in units of 1 / SCALE. So they do not depend on the order in which queues were added
  and removed, and nothing drifts.
- Deviation from the exact sum: the class that contains v receives min(Σ b, v Σ w), not Σ min(b, v w). This is too much
  by at most the class's width, 1 / CLASSES of that class's part, and it is exact if all its queues have one level. The
  result is continuous in v and never falls as v grows.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import frexp, inf
from typing import NamedTuple

from dispatcher.policies.tiers import Tier

CLASSES = 32
"""Classes of each octave of levels. A class is at most 3.2 % wide."""
SCALE = 1 << 32


def scaled(value: float) -> int:
    """Return the value in units of 1 / SCALE, rounded down."""
    return int(value * SCALE)


def class_of(level: float) -> int:
    """Return the class of a level above 0. A higher level never has a lower class."""
    mantissa, exponent = frexp(level)
    return exponent * CLASSES + int(mantissa * 2 * CLASSES) - CLASSES


class Levels:
    """Sums of queues by class. Services and weights are given in units of 1 / SCALE (`scaled`)."""

    __slots__ = ("_classes", "_empty", "_is_old", "_open", "sums")

    def __init__(self) -> None:
        self.sums: dict[int, tuple[int, int, int]] = {}
        """The number of queues, their service and their weight, by class. No class without a queue."""
        self._classes: list[int] = []
        self._empty: list[float] = [0.0]
        """The service below each class, in service units."""
        self._open: list[float] = [0.0]
        """The weight from each class on, without dimension."""
        self._is_old = False

    def add(self, service: int, weight: int, sign: int = 1) -> None:
        """Add a queue; with `sign` -1 remove one that was added with the same numbers. Both are above 0."""
        place = class_of(service / weight)
        queues, services, weights = self.sums.get(place, (0, 0, 0))
        if queues + sign:
            self.sums[place] = (queues + sign, services + sign * service, weights + sign * weight)
        else:
            del self.sums[place]
        self._is_old = True

    @property
    def total(self) -> float:
        """All service that waits, in service units."""
        self._refresh()
        return self._empty[-1]

    def given(self, level: float) -> float:
        """Return what all queues get until each has got `level` per weight or is empty, in service units."""
        self._refresh()
        if level == inf:
            return self._empty[-1]
        if level <= 0.0:
            return 0.0
        own = class_of(level)
        place = bisect_left(self._classes, own)
        if place == len(self._classes) or self._classes[place] != own:
            return self._empty[place] + level * self._open[place]
        _, service, weight = self.sums[own]
        part = min(service / SCALE, level * (weight / SCALE))
        return self._empty[place] + part + level * self._open[place + 1]

    def _refresh(self) -> None:
        """Make the sums over the classes after a change."""
        if not self._is_old:
            return
        self._classes = sorted(self.sums)
        rows = [self.sums[each] for each in self._classes]
        self._empty = [each / SCALE for each in accumulate((row[1] for row in rows), initial=0)]
        weights = list(accumulate((row[2] for row in reversed(rows)), initial=0))
        self._open = [each / SCALE for each in reversed(weights)]
        self._is_old = False


DEFERRED_RANK = len(Tier)

QueueName = tuple[str, bool]
"""A model, and whether the queue's calls are deferred."""


class Part(NamedTuple):
    """What one queue adds to the sums: `now` waits, and `later` is that with what is forecast to arrive.

    Both are calls, or service units with `is_service`. All numbers are in units of 1 / SCALE.
    """

    rank: int
    is_service: bool
    weight: int
    now: int
    later: int


class RankSums:
    """The sums of one model and rank, in calls and in service units, of what waits now and of what is forecast."""

    __slots__ = ("calls", "service")

    def __init__(self) -> None:
        self.calls, self.service = (Levels(), Levels()), (Levels(), Levels())

    def add(self, part: Part, sign: int) -> None:
        now, later = self.service if part.is_service else self.calls
        if part.now:
            now.add(part.now, part.weight, sign)
        later.add(part.later, part.weight, sign)

    def given(self, level: float, mean_cost: float) -> tuple[float, float]:
        """Return the service that all queues get until each has got `level` per weight, of what waits now and of that
        with what is forecast. `mean_cost`: the model's mean service of a call, above 0."""
        calls, service = level / mean_cost, self.service
        now = self.calls[0].given(calls) * mean_cost + service[0].given(level)
        return now, self.calls[1].given(calls) * mean_cost + service[1].given(level)

    @property
    def is_empty(self) -> bool:
        return not (self.calls[1].sums or self.service[1].sums)


class Backlogs:
    """The sums by model and rank, and each queue's part of them."""

    def __init__(self) -> None:
        self.ranks: dict[str, dict[int, RankSums]] = {}
        """The sums by model and rank. A model or a rank without a queue is absent."""
        self.parts: dict[str, dict[QueueName, Part]] = {}
        """The parts by tenant and queue."""

    def set(self, tenant: str, queue: QueueName, part: Part | None) -> None:
        """Replace the queue's part. None: it adds nothing."""
        of_tenant = self.parts.get(tenant)
        before = of_tenant.get(queue) if of_tenant is not None else None
        if before == part:
            return
        if part is not None:
            self._add(queue[0], part)
            self.parts.setdefault(tenant, {})[queue] = part
        elif of_tenant is not None:
            del of_tenant[queue]
            if not of_tenant:
                del self.parts[tenant]
        if before is not None:
            self._remove(queue[0], before)

    def waiting(self, tenant: str, queue: QueueName, mean_cost: float) -> tuple[float, float]:
        """Return the queue's own service in the sums: what waits now, and that with what is forecast."""
        part = self.parts.get(tenant, {}).get(queue)
        if part is None:
            return 0.0, 0.0
        unit = (1.0 if part.is_service else mean_cost) / scaled(1.0)
        return part.now * unit, part.later * unit

    def _add(self, model: str, part: Part) -> None:
        ranks = self.ranks.get(model)
        if ranks is None:
            ranks = self.ranks[model] = {}
        sums = ranks.get(part.rank)
        if sums is None:
            sums = ranks[part.rank] = RankSums()
        sums.add(part, 1)

    def _remove(self, model: str, part: Part) -> None:
        ranks = self.ranks[model]
        sums = ranks[part.rank]
        sums.add(part, -1)
        if sums.is_empty:
            del ranks[part.rank]
            if not ranks:
                del self.ranks[model]
