"""Rule 10: what a process does with its clocks. Entry times never go back, and a doubtful clock decides no deadline."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Clock

SKEW_MAX_S = 2.0
"""A process that is further off the store's clock does not write."""
JUMP_S = 1.0
"""The wall clock jumped if it moved so much more or less than the monotonic one."""
CALM_S = 5.0
"""For so long after a takeover, a jump or a pause no deadline and no loss is decided."""
POSITION_MAX_AGE_S = 3600.0
"""A position that was read longer ago may have been written and have expired since (rule 1)."""


def no_skew() -> float:
    return 0.0


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
    """`skew_s`: by how much this process's clock is ahead of the store's, as its last reply showed."""

    def __init__(self, clock: Clock, skew_s: Callable[[], float] = no_skew) -> None:
        self._clock, self._skew_s = clock, skew_s
        self._last = Moment(clock)
        self._calm_until = 0.0

    def entry_time(self, previous: float) -> float:
        """Return the time of a new entry. Raises StoreUnavailable if this process's clock is wrong."""
        skew = self._skew_s()
        if abs(skew) > SKEW_MAX_S:
            raise StoreUnavailable(f"This process's clock is {skew:+.1f} s off the table's. It writes nothing.")
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
