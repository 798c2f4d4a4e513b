"""The attempts that a worker never begins (again): those that reached it, and those that it fenced.

An execution token is valid for many seconds, so a copy of an order may arrive when its attempt has already ended. And a
process that was paused may sign an order for an offer that this worker has returned to the gate long ago. The worker
remembers both. Attempts of one call count up: an order below the highest attempt that was seen is stale too.

The memory is bounded by time and number. An order that arrives after its attempt was forgotten begins, and is aborted
some seconds later, because the log does not hold its attempt (held_attempts.py).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, ExecutionToken
from dispatcher.ports import Clock

KEEP_S = 1000.0
"""Longer than a call lives: its deadline is at most 900 s away."""
TOKEN_S = 2 * EXECUTION_TOKEN_TTL_S
"""After this time every token of an attempt has expired, also where the clocks differ by some seconds."""
SEEN_MAX = 65_536
"""If there are more, those beyond TOKEN_S are forgotten first. Within TOKEN_S none is forgotten."""
SKEW_S = 2.0
"""Most by which the clocks of gate and worker differ. A process that differs by more does not write (rule 10)."""


class _Seen(NamedTuple):
    attempt: int
    at_s: float


@dataclass(eq=False)
class SeenAttempts:
    """`started_at`: since when this process can receive orders, in Unix seconds."""

    clock: Clock
    started_at: float = 0.0
    seen_max: int = SEEN_MAX
    _seen: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)
    """By call: its highest attempt that was seen. The oldest entry is the first."""

    def __len__(self) -> int:
        return len(self._seen)

    def is_stale(self, token: ExecutionToken) -> bool:
        """Whether the token was signed before this process started: its order may have begun in the process before."""
        return token.expires_at - EXECUTION_TOKEN_TTL_S < self.started_at - SKEW_S

    def take(self, call_id: str, attempt: int) -> bool:
        """Note the attempt. False if it or a later attempt of the call was seen before: it must not begin."""
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
