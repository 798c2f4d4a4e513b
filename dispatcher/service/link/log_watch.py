"""Finds out when the log cannot be used, as opposed to a change of the leader, so that callers learn of it in time.

A command without an outcome has one of two reasons. The leader is changing: then another one takes over within half a
second, and decides the command. Or the log cannot be written: then nobody can decide. The time of a command counts
against the log only in these states:

    connected    the leader sends receipts, so it lives, and yet no command gets an outcome
    alone        this process has the state and decides itself, so only the log is missing
    searching    the log does not answer the search for a leader; or the last connection has ended after SUSPECT_S
                 without outcomes; or a leader has stepped down, and none has followed within VACANT_S

Each outcome shows that the log answers, and the count begins anew. A command of a caller fails once LOG_PATIENCE_S
have counted against the log. The time is counted in steps, and a late step counts as two: a pause of this process is
no silence of the log.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.ports import Clock

LOG_PATIENCE_S = 1.6
"""Longer than a leader that the log does not answer leads on (group_commit.STALLED_S) and its successor takes over."""
SUSPECT_S = 0.7
VACANT_S = 0.25
READ_LATE_S = 0.25
"""A read of the log's end that takes longer counts as unanswered."""
STEP_S = 0.1


class LogWatch:
    """Counts the time of one process against the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counted_s = 0.0
        """The seconds that have counted against the log since the process began."""
        self.is_suspected = False
        """True from the end of a connection without outcomes to the next outcome."""
        self._answered_s = 0.0
        """The value of `counted_s` at the last outcome."""

    def answered(self) -> None:
        """Note that a command got an outcome, so the log answers."""
        self._answered_s, self.is_suspected = self.counted_s, False

    @property
    def is_silent(self) -> bool:
        """Return whether commands have had no outcome for SUSPECT_S, and this counts against the log."""
        return self.counted_s - self._answered_s >= SUSPECT_S

    def since(self, began_s: float) -> float:
        """Return the seconds that count against the log for a command that began when `counted_s` was `began_s`."""
        return self.counted_s - max(began_s, self._answered_s)

    async def run(self, blames_log: Callable[[], bool], has_commands: Callable[[], bool]) -> None:
        """Count until `has_commands`, which is called after each step, returns false."""
        at_s = self._clock.monotonic()
        while has_commands():
            await self._clock.sleep(STEP_S)
            step_s, at_s = self._clock.monotonic() - at_s, self._clock.monotonic()
            if blames_log():
                self.counted_s += min(step_s, 2 * STEP_S)
