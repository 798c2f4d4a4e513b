"""What the next load of a model is expected to take. Pure.

It is the median of the model's last five loads, where what was believed, or the first load, counts as one until there
are five. A load that is slower or faster for good is priced after three swaps, and one or two outliers change nothing.

The loads of one worker share a disk and a bus, so a belief that is wrong for one model is probably wrong for the
others by as much. So the belief of a model is multiplied by the median ratio of the worker's last five loads to their
beliefs (`Slowness`). Otherwise a fleet whose loads took ten times longer than believed paid for that with each model
anew. Two loads show the ratio; after the first one it is half-way to 1, and back at 1 if the second took what was
believed. QLM (SoCC 2024, section 6) profiles a swap once.

Units: seconds.
"""

from __future__ import annotations

from collections import deque
from statistics import median

KEPT = 5
TELLING_S = 1.0
"""A load that was believed to be shorter says nothing of others: what a worker does beside it takes as long."""
RATIO_MAX = 20.0
"""A load that took longer, perhaps once because a disk stood still, counts with this ratio."""
SCALED_MAX_S = 600.0
"""A belief is not scaled above this, because the gate orders no swap that takes longer: it would never be measured."""


class Slowness:
    """A worker's loads take `factor` times what was believed. A factor of 1 counts as a first load."""

    def __init__(self) -> None:
        self._ratios = deque([1.0], KEPT)

    @property
    def factor(self) -> float:
        return median(self._ratios)

    def observe(self, ratio: float) -> None:
        """Count a load."""
        self._ratios.append(min(ratio, RATIO_MAX))


class SwapSeconds:
    """`believed_s`: None if nothing is known; the first load is then believed. `slowness`: of the worker's loads."""

    def __init__(self, believed_s: float | None = None, slowness: Slowness | None = None) -> None:
        self._believed_s = believed_s
        self._slowness = slowness or Slowness()
        self._last_s = deque[float]([], KEPT)

    @property
    def is_known(self) -> bool:
        return self._believed_s is not None

    @property
    def expected_s(self) -> float:
        """Seconds. Raises ValueError if nothing is known."""
        if self._believed_s is None:
            raise ValueError("no load is known")
        if len(self._last_s) == KEPT:
            return median(self._last_s)
        scaled_s = min(self._believed_s * self._slowness.factor, max(self._believed_s, SCALED_MAX_S))
        return median([scaled_s, *self._last_s])

    def observe(self, took_s: float) -> None:
        """Count a load."""
        if self._believed_s is None:
            self._believed_s = took_s
            return
        if self._believed_s >= TELLING_S:
            self._slowness.observe(took_s / self._believed_s)
        self._last_s.append(took_s)
