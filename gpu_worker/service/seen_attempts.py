"""The attempts that a worker must not begin: those that reached it before, and those that it returned to the gate.

An execution token is valid for many seconds, so a copy of an order may arrive after its attempt has ended. And a
process that was paused may sign an order for an offer that this worker returned to the gate long ago. The worker
remembers both kinds of attempts. The attempts of a call have rising numbers, so an order with a lower number than the
highest seen one is stale too.

The memory is bounded by time and number. If an order arrives after its attempt was forgotten, the execution begins.
Some seconds later it is aborted, because the log does not hold the attempt (held_attempts.py).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, ExecutionToken
from dispatcher.ports import Clock

KEEP_S = 1000.0
"""An attempt is remembered for this time. It is longer than a call lives: a deadline is at most 900 s away."""
TOKEN_S = 2 * EXECUTION_TOKEN_TTL_S
"""After this time every token of an attempt has expired, even if the clocks differ by some seconds."""
SEEN_MAX = 65_536
"""If there are more attempts than this, those older than TOKEN_S are forgotten. Younger ones are always kept."""
SKEW_S = 2.0
"""The largest difference between the clocks of gate and worker. With a larger one, a gate does not write (rule 10)."""


class _Seen(NamedTuple):
    attempt: int
    at_s: float


@dataclass(eq=False)
class SeenAttempts:
    """The memory of one process. `started_at`: the time at which it began to receive orders, in Unix seconds."""

    clock: Clock
    started_at: float = 0.0
    seen_max: int = SEEN_MAX
    _seen: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)
    """The highest seen attempt of each call, the oldest entry first."""

    def __len__(self) -> int:
        return len(self._seen)

    def is_stale(self, token: ExecutionToken) -> bool:
        """Return whether the token is older than this process. Then an earlier process may have begun its order."""
        return token.expires_at - EXECUTION_TOKEN_TTL_S < self.started_at - SKEW_S

    def take(self, call_id: str, attempt: int) -> bool:
        """Remember the attempt. Return False if it must not begin, because it or a later attempt was seen before."""
        now_s = self.clock.monotonic()
        self._forget(now_s)
        if self.has(call_id, attempt):
            return False
        self._seen[call_id] = _Seen(attempt, now_s)
        self._seen.move_to_end(call_id)
        return True

    def has(self, call_id: str, attempt: int) -> bool:
        seen = self._seen.get(call_id)
        return seen is not None and attempt <= seen.attempt

    def _forget(self, now_s: float) -> None:
        while self._seen:
            call_id, oldest = next(iter(self._seen.items()))
            keep_s = KEEP_S if len(self._seen) <= self.seen_max else TOKEN_S
            if now_s - oldest.at_s < keep_s:
                return
            del self._seen[call_id]
