"""DynamoDB's own time, from the Date header of its replies.

Leases, deadlines and expiry compare times of different processes. If the clock of a process differs from DynamoDB's by
more than SKEW_MAX_S, the process must not append to a log, because its entries would have wrong times.

The header has whole seconds, and the reply takes time to arrive. So a clock counts as wrong only if it is wrong for
every moment at which DynamoDB may have written the reply. If the wall clock has moved more or less than the monotonic
clock since that reply, the difference is added to its error, until the next reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from dispatcher.model.errors import WrongClock
from dispatcher.ports import Clock

SKEW_MAX_S = 2.0
OBSERVED_EVERY_S = 1.0


class Times(NamedTuple):
    """A moment by both clocks of a process, in seconds."""

    wall: float
    monotonic: float


def times(clock: Clock) -> Times:
    return Times(clock.now(), clock.monotonic())


class ServerTime:
    def __init__(self) -> None:
        self._observed: Times | None = None
        """The start of the request whose reply was compared last."""
        self._ahead_s, self._behind_s = float("-inf"), float("-inf")

    def observe(self, reply: Mapping[str, Any], began: Times, ended: Times) -> None:
        """Compare a reply's date with the process's times before the request and after the reply."""
        if self._is_recent(ended) and self._off_s(ended) <= SKEW_MAX_S:
            return
        date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            written = parsedate_to_datetime(date).timestamp()
            latest = began.wall + ended.monotonic - began.monotonic  # the clock may have jumped during the request
            self._observed, self._ahead_s, self._behind_s = began, began.wall - (written + 1), written - latest

    def is_right(self, now: Times) -> bool:
        """Return whether this process's clock is right, as far as the last reply shows."""
        return self._off_s(now) <= SKEW_MAX_S

    def check(self, now: Times) -> None:
        """Raise WrongClock if this process's clock is wrong."""
        if not self.is_right(now):
            off_s = self._off_s(now)
            direction = "ahead of" if off_s == self._ahead_s + self._drift_s(now) else "behind"
            raise WrongClock(f"This process's clock is {off_s:.1f} s {direction} DynamoDB's: set it right.")

    def _off_s(self, now: Times) -> float:
        drift_s = self._drift_s(now)
        return max(self._ahead_s + drift_s, self._behind_s - drift_s)

    def _drift_s(self, now: Times) -> float:
        """Return by how many seconds the wall clock has moved more than the monotonic clock since the last reply."""
        since = self._observed or now
        return (now.wall - since.wall) - (now.monotonic - since.monotonic)

    def _is_recent(self, now: Times) -> bool:
        return self._observed is not None and now.monotonic - self._observed.monotonic < OBSERVED_EVERY_S
