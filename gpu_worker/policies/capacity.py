"""A worker's capacity: the service per second that it delivered while it had as many requests as it takes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

WINDOW_S = 30.0


@dataclass(eq=False)
class MeasuredCapacity:
    """Estimates capacity from the total service that each heartbeat reports. `window_s`: seconds."""

    window_s: float = WINDOW_S
    service_per_s: float = 0.0
    """Service units per second; 0 until the worker was saturated once."""
    _observed: deque[tuple[float, float, bool]] = field(default_factory=deque)

    def observe(self, now: float, served: float, *, saturated: bool) -> float:
        """Add a heartbeat's observation and return the new estimate, in service units per second.

        `served`: service units since the engine started. `saturated`: requests wait in the engine, or all slots of the
        worker are taken.

        The estimate is the highest rate between two consecutive observations within the window. Only intervals that
        start and end saturated count, and the highest rate is taken, because the worker may have been idle for a part
        of such an interval. Without such an interval, or without any service in them because the engine hangs or is
        replaced, the last estimate stays.
        """
        self._observed.append((now, served, saturated))
        while now - self._observed[0][0] > self.window_s:
            self._observed.popleft()
        rates = [
            (after - before) / (end - start)
            for (start, before, was_saturated), (end, after, is_saturated) in pairwise(self._observed)
            if was_saturated and is_saturated and end > start
        ]
        self.service_per_s = max(rates, default=0.0) or self.service_per_s
        return self.service_per_s
