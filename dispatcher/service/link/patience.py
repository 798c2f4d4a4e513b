"""How long a process waits for a receipt before it suspects that the leader is gone (rule 7).

It judges by the receipts that it got: on a host with busy processors they come late without a fault. With L the longest
time that a receipt took in the last WINDOW_S seconds,

    patience = max(PATIENCE_S, TAIL_FACTOR x L), at most PATIENCE_MAX_S

So on a quiet host a silent leader is noticed after PATIENCE_S, and on a busy one a receipt that takes TAIL_FACTOR times
as long as any before is still no sign. A leader that is killed is noticed at once: its connection breaks. L is kept in
SLOTS parts of the window, so it takes O(1) a receipt. Times are in seconds, by the process's monotonic clock.
"""

from __future__ import annotations

from collections import deque

PATIENCE_S, PATIENCE_MAX_S = 0.25, 2.0
"""The maximum is below presence.SILENT_S: a leader that sends no receipts is replaced before its clients are silent."""
TAIL_FACTOR = 8.0
WINDOW_S, SLOTS = 300.0, 10


class LinkPatience:
    """The patience of one process. It outlives the process's connections."""

    def __init__(self) -> None:
        self._longest: deque[tuple[float, float]] = deque(maxlen=SLOTS)
        """When each part of the window began, and the longest time of a receipt in it."""

    def took(self, seconds: float, now: float) -> None:
        """Note the time that a receipt took, or that it took at least."""
        if not self._longest or now - self._longest[-1][0] >= WINDOW_S / SLOTS:
            self._longest.append((now, seconds))
        elif seconds > self._longest[-1][1]:
            self._longest[-1] = (self._longest[-1][0], seconds)

    def seconds(self, now: float) -> float:
        """Return the patience, between PATIENCE_S and PATIENCE_MAX_S."""
        longest = max((each for began, each in self._longest if now - began < WINDOW_S), default=0.0)
        return min(PATIENCE_MAX_S, max(PATIENCE_S, TAIL_FACTOR * longest))
