"""What the next load of a model is expected to take: the median of its last five loads. Pure.

A load that is slower or faster for good is priced after three swaps, and one or two outliers change nothing. QLM (SoCC
2024, section 6) profiles a swap once; here a disk may become slower, or other engines may use it at the same time.
"""

from __future__ import annotations

from collections import deque
from statistics import median

KEPT = 5


class SwapSeconds:
    """`believed_s`: counts as a first load; None if nothing is known."""

    def __init__(self, believed_s: float | None = None) -> None:
        self._last_s: deque[float] = deque([] if believed_s is None else [believed_s], KEPT)

    @property
    def is_known(self) -> bool:
        return bool(self._last_s)

    @property
    def expected_s(self) -> float:
        """Seconds. Raises statistics.StatisticsError if nothing is known."""
        return median(self._last_s)

    def observe(self, took_s: float) -> None:
        """Count a load."""
        self._last_s.append(took_s)
