"""Guards against wrong clocks (rule 10): entry times never go back, and no deadline is decided on a doubtful clock."""

from __future__ import annotations

from dispatcher.ports import Clock

JUMP_S = 1.0
"""The wall clock has jumped if it moved this much more or less than the monotonic clock."""
CALM_S = 5.0
"""After a takeover, a jump of the clock or a pause, no deadline passes and no process is lost for this long."""
POSITION_MAX_AGE_S = 3600.0
"""If a position was read longer ago, another entry may have been written there and have expired since (rule 1)."""


class Moment:
    """A point in time on both clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._monotonic = clock.now(), clock.monotonic()

    def age_s(self) -> float:
        """Return the seconds since this moment, by the clock that shows more."""
        return max(self._clock.now() - self._wall, self._clock.monotonic() - self._monotonic)

    def drift_s(self) -> float:
        """Return how many seconds more the wall clock has moved than the monotonic one."""
        return (self._clock.now() - self._wall) - (self._clock.monotonic() - self._monotonic)


class ClockGuard:
    """Watches this process's clocks. The store checks them too: it refuses an append if the process's clock differs
    too much from its own (stores/dynamodb/server_time.py)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = Moment(clock)
        self._calm_until = 0.0

    def entry_time(self, previous: float) -> float:
        """Return the time of a new entry: now, but not before the entry before it."""
        self.check()
        return max(previous, self._clock.now())

    def check(self) -> None:
        """Begin a calm time if the wall clock has jumped since the last check."""
        if abs(self._last.drift_s()) > JUMP_S:
            self.stay_calm()
        self._last = Moment(self._clock)

    def stay_calm(self) -> None:
        self._calm_until = self._clock.monotonic() + CALM_S

    @property
    def is_calm(self) -> bool:
        """True while deadlines and losses may not be decided."""
        return self._clock.monotonic() < self._calm_until
