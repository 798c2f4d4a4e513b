"""Decides whether a flush waits for the receiver of spans. Pure: the time comes in.

A flush delays the answer of a function. After a failure the next flushes therefore do not wait for PAUSE_FIRST_S, and
after each further failure for twice as long, at most PAUSE_MAX_S. So a dead receiver costs a process one wait, and
then none for minutes. The spans stay in the queue of the SDK meanwhile, and its thread still tries to send them.
"""

from __future__ import annotations

from math import inf

PAUSE_FIRST_S = 120.0
PAUSE_MAX_S = 1800.0


class FlushPauses:
    """All times are of one clock that is never set back, in seconds.

    The thread of the SDK and the event loop both call it. An update that is lost between them costs one more wait.
    """

    def __init__(self) -> None:
        self._pause_s, self._until_s = 0.0, -inf

    def allow(self, now_s: float) -> bool:
        """Return whether a flush may wait now."""
        return now_s >= self._until_s

    def sent(self) -> None:
        """Record that the receiver took spans: this ends a pause."""
        self._pause_s, self._until_s = 0.0, -inf

    def failed(self, now_s: float) -> None:
        """Record that the receiver took no spans: this begins a pause. It does nothing during one."""
        if self.allow(now_s):
            self._pause_s = min(max(PAUSE_FIRST_S, 2 * self._pause_s), PAUSE_MAX_S)
            self._until_s = now_s + self._pause_s
