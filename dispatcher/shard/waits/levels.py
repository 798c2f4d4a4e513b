"""What a fair order gives to queues while each receives so much service per weight, summed incrementally.

With b the service that waits in a queue of weight w, all queues together receive Σ min(b, v w) until each has had v per
weight or is empty: the fluid model of weighted fair queueing (waits.py). A queue's level is
b / w. Queues are counted in classes of their level, CLASSES to an octave. So a queue is added or removed in O(1), and
the sum is found among the classes, of which there are at most some hundreds, however many queues there are.

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
