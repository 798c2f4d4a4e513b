"""Guards against wrong clocks (rule 10): entry times never go back, and no deadline passes on a doubtful clock."""

from __future__ import annotations

from dispatcher.ports import Clock

JUMP_S = 1.0
"""The wall clock counts as jumped if it moved this much more or less than the monotonic clock."""
CALM_S = 5.0
"""A calm time lasts so long. It begins with a takeover, a jump of the clock or a pause. During it the leader decides no
deadline, and declares no process and no worker lost."""
POSITION_MAX_AGE_S = 3600.0
"""If a position was read longer ago than this, another process may have written it, and its entry may have expired
since (rule 1)."""


class Moment:
    """A point in time on both clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._monotonic = clock.now(), clock.monotonic()

    def age_s(self) -> float:
        """Return the seconds since this moment, by the clock that shows the longer time."""
        return max(self._clock.now() - self._wall, self._clock.monotonic() - self._monotonic)

    def drift_s(self) -> float:
        """Return by how many seconds the wall clock has moved more than the monotonic clock since this moment."""
        return (self._clock.now() - self._wall) - (self._clock.monotonic() - self._monotonic)


class ClockGuard:
    """Watches this process's clocks. The store watches them too: it refuses an append if this process's clock differs
    too much from the store's (stores/dynamodb/server_time.py)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = Moment(clock)
        self._calm_until = 0.0

    def entry_time(self, previous: float) -> float:
        """Return the time of a new entry: now, but not before `previous`, the time of the entry before."""
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
