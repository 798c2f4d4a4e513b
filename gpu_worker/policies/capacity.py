"""A worker's capacity: the service per second that it delivered while it had as many requests as it takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

WINDOW_S = 30.0


@dataclass(eq=False)
class MeasuredCapacity:
    """Estimates capacity from the total service that each heartbeat reports. `window_s`: seconds.

    `stretch_s`: an interval between observations counts from this length on. A worker that has just loaded a model
    reads the prompts of a whole batch within a second, and the service of that second is no rate that it keeps.
    """

    window_s: float = WINDOW_S
    service_per_s: float = 0.0
    """Service units per second; 0 until the worker was saturated once."""
    stretch_s: float = 0.0
    _observed: deque[tuple[float, float, bool]] = field(default_factory=deque)

    def observe(self, now: float, served: float, *, saturated: bool) -> float:
        """Add a heartbeat's observation and return the new estimate, in service units per second.

        `served`: service units since the engine started. `saturated`: requests wait in the engine, or all slots of the
        worker are taken.

        The estimate is the highest rate of an interval within the window. An interval is as long as `stretch_s` needs,
        and all its observations are saturated. The highest rate is taken, because the worker may have been idle for a
        part of such an interval. Without such an interval, or without any service in them because the engine hangs or
        is replaced, the last estimate stays.
        """
        self._observed.append((now, served, saturated))
        while now - self._observed[0][0] > self.window_s:
            self._observed.popleft()
        self.service_per_s = max(self._rates(), default=0.0) or self.service_per_s
        return self.service_per_s

    def _rates(self) -> Iterator[float]:
        start: tuple[float, float] | None = None
        for now, served, saturated in self._observed:
            if not saturated:
                start = None
            elif start is None or now == start[0]:
                start = now, served
            elif now - start[0] >= self.stretch_s:
                yield (served - start[1]) / (now - start[0])
                start = now, served
