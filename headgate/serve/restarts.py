"""Decides when an ended process is started again: soon, then with growing delays. Pure; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_S, MOST_S = 0.5, 30.0
STEADY_S = 10.0
"""A process that served this long counts as healthy: its next restart comes after FIRST_S again.

A worker that crashes 5 s after it was ready has ended hardly any call, and each call that it had begun has lost one of
its three attempts: the growing delays keep these calls for the other workers. A process that serves longer between its
crashes does more good than harm, so it is started again at once. The time to load does not count, because it serves no
call.
"""


@dataclass(slots=True)
class Restarts:
    """Counts the restarts of each process."""

    _delays: dict[str, float] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)
    """When the process was ready, until it ends."""

    def started(self, name: str, now: float) -> None:
        self._started[name] = now

    def delay(self, name: str, now: float) -> float:
        """Return how long to wait before the next start of a process that ended now, or that did not start."""
        lived = now - self._started.pop(name, now)
        before = self._delays.get(name)
        delay = FIRST_S if before is None or lived >= STEADY_S else min(2 * before, MOST_S)
        self._delays[name] = delay
        return delay
