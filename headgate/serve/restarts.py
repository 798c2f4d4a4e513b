"""Decides when a process that ended is started again: soon, then with growing delays. Pure; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_S, MOST_S = 0.5, 30.0
STEADY_S = 10.0
"""A process that served for this time counts as healthy, and its next restart comes after FIRST_S again.

A worker that crashes 5 s after it was ready has finished hardly any call, and each call that it had begun has lost one
of its three attempts. With growing delays, other workers get these calls. A process that serves longer between its
crashes is useful, so it is started again soon. The time in which it loads its model does not count.
"""


@dataclass(slots=True)
class Restarts:
    """Counts the restarts of each process."""

    _delays: dict[str, float] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)
    """The time at which each living process was ready."""

    def started(self, name: str, now: float) -> None:
        self._started[name] = now

    def delay(self, name: str, now: float) -> float:
        """Return the delay before the next start of a process that ended at `now`, or that did not start."""
        lived = now - self._started.pop(name, now)
        before = self._delays.get(name)
        delay = FIRST_S if before is None or lived >= STEADY_S else min(2 * before, MOST_S)
        self._delays[name] = delay
        return delay
