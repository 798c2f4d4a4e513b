"""Rule 10: what a process does with its clocks. Entry times never go back, and a doubtful clock decides no deadline."""

from __future__ import annotations

from dispatcher.ports import Clock

JUMP_S = 1.0
"""The wall clock jumped if it moved so much more or less than the monotonic one."""
CALM_S = 5.0
"""For so long after a takeover, a jump or a pause no deadline and no loss is decided."""
POSITION_MAX_AGE_S = 3600.0
"""A position that was read longer ago may have been written and have expired since (rule 1)."""


class Moment:
    """A point in time on both clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._monotonic = clock.now(), clock.monotonic()

    def age_s(self) -> float:
        """Return the seconds since then by the clock that shows more."""
        return max(self._clock.now() - self._wall, self._clock.monotonic() - self._monotonic)

    def drift_s(self) -> float:
        """Return by how much the wall clock has moved more than the monotonic one."""
        return (self._clock.now() - self._wall) - (self._clock.monotonic() - self._monotonic)


class ClockGuard:
    """The store refuses the appends of a process whose clock is off its own (stores/dynamodb/server_time.py)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = Moment(clock)
        self._calm_until = 0.0

    def entry_time(self, previous: float) -> float:
        """Return the time of a new entry."""
        self.check()
        return max(previous, self._clock.now())

    def check(self) -> None:
        """Stay calm if the wall clock has jumped since the last check."""
        if abs(self._last.drift_s()) > JUMP_S:
            self.stay_calm()
        self._last = Moment(self._clock)

    def stay_calm(self) -> None:
        self._calm_until = self._clock.monotonic() + CALM_S

    @property
    def is_calm(self) -> bool:
        """Deadlines and losses may not be decided now."""
        return self._clock.monotonic() < self._calm_until
