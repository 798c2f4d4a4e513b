"""DynamoDB's own time, from the Date header of its replies.

Leases, deadlines and expiry compare times of different processes. If the clock of a process differs from DynamoDB's by
more than _SKEW_MAX_S, the process must not append to a log, because its entries would have wrong times.

The header has whole seconds, and the reply takes time to arrive. So a clock counts as wrong only if it is wrong for
every moment at which DynamoDB may have written the reply. If the wall clock has moved more or less than the monotonic
clock since that reply, the difference is added to its error, until the next reply.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import inf
from typing import Any, NamedTuple

from dispatcher.model.errors import WrongClock
from dispatcher.ports import Clock

_SKEW_MAX_S = 2.0
OBSERVED_EVERY_S = 1.0
_LOGGED_EVERY_S = 60.0


class Times(NamedTuple):
    """A moment by both clocks of a process, in seconds."""

    wall: float
    monotonic: float


def times(clock: Clock) -> Times:
    return Times(clock.now(), clock.monotonic())


class TimedReply(NamedTuple):
    """A reply that was compared with this process's clock. `began`: when its request began."""

    began: Times
    ahead_s: float
    behind_s: float


class ServerTime:
    """Threads compare replies, and the event loop checks the clock. So what they share is replaced as a whole."""

    def __init__(self) -> None:
        self._last: TimedReply | None = None
        self._logged_at = -inf

    def observe(self, reply: Mapping[str, Any], began: Times, ended: Times) -> None:
        """Compare a reply's date with the process's times before the request and after the reply."""
        last = self._last
        if last is not None and ended.monotonic - last.began.monotonic < OBSERVED_EVERY_S and self.is_right(ended):
            return
        date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            written = parsedate_to_datetime(date).timestamp()
            latest = began.wall + ended.monotonic - began.monotonic  # the clock may have jumped during the request
            self._last = TimedReply(began, began.wall - (written + 1), written - latest)

    def is_right(self, now: Times) -> bool:
        """Return whether this process's clock is right, as far as the last reply shows."""
        return max(self._ahead_and_behind_s(now)) <= _SKEW_MAX_S

    def check(self, now: Times) -> None:
        """Raise WrongClock if this process's clock is wrong. Log it, at most every _LOGGED_EVERY_S."""
        if not self.is_right(now):
            ahead_s, behind_s = self._ahead_and_behind_s(now)
            off_s, direction = max((ahead_s, "ahead of"), (behind_s, "behind"))
            error = WrongClock(f"This process's clock is {off_s:.1f} s {direction} DynamoDB's: set it right.")
            if now.monotonic - self._logged_at >= _LOGGED_EVERY_S:
                self._logged_at = now.monotonic
                logging.getLogger("headgate.store").error("no entry is written: %s", error)
            raise error

    def _ahead_and_behind_s(self, now: Times) -> tuple[float, float]:
        """Return by how many seconds the clock is ahead and behind, each at least; a negative one says nothing."""
        last = self._last
        if last is None:
            return 0.0, 0.0
        drift_s = (now.wall - last.began.wall) - (now.monotonic - last.began.monotonic)
        return last.ahead_s + drift_s, last.behind_s - drift_s
