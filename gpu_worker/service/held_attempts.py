"""Compares the attempts that the log holds for a worker with those that run there. Pure; times are monotonic seconds.

The answer to each heartbeat lists the attempts that the log holds. Two differences lead to an action if they last:

- The log holds an attempt that is not live here, and its order has not arrived OFFER_S after the first answer that
  lists it. Then the caller's process is slow or dead. The worker promises never to begin the attempt, and returns it.
- An execution runs here, and no answer of the last UNKNOWN_S lists it. Then its attempt was returned or ended by
  another process. The worker aborts it and reports nothing. One answer is not enough: it may be older than the attempt.

An answer is outdated, and ignored, if an earlier answer was from a higher position of the log.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from dispatcher.model.commands import Attempts

OFFER_S = 2.0
UNKNOWN_S = 2.0


@dataclass(eq=False)
class HeldAttempts:
    _position: int = -1
    _old: Set[str] | None = None
    """The attempts of the first answer. An earlier process of this worker may have begun them."""
    _absent_since_s: dict[str, float] = field(default_factory=dict)
    """The attempts that the log holds and that are not live here, each with the time of the first such answer."""
    _unknown_since_s: dict[str, float] = field(default_factory=dict)
    """The executions that run here and that the log does not hold, each with the time of the first such answer."""

    def note(self, answer: Attempts, running: Set[str], live: Set[str], now_s: float) -> bool:
        """Record an answer. Return False if it is outdated.

        `running`: the executions that ran when the heartbeat was sent. `live`: the attempts that are live now.
        """
        if answer.position < self._position:
            return False
        self._position = answer.position
        held = set(answer.held)
        if self._old is None:
            self._old = held
        self._absent_since_s = _since(held - live, self._absent_since_s, now_s)
        self._unknown_since_s = _since(running - held, self._unknown_since_s, now_s)
        return True

    def overdue(self, now_s: float) -> list[str]:
        """Return the held attempts without an order in time. The caller must return each of them to the gate."""
        due = [name for name, since_s in self._absent_since_s.items() if now_s - since_s >= OFFER_S]
        for name in due:
            del self._absent_since_s[name]
        return due

    def is_old(self, name: str) -> bool:
        return self._old is not None and name in self._old

    def unknown(self, now_s: float) -> list[str]:
        """Return the executions that the log has not held for UNKNOWN_S, by the answer recorded at `now_s`."""
        return [name for name, since_s in self._unknown_since_s.items() if now_s - since_s >= UNKNOWN_S]


def _since(names: Set[str], known: dict[str, float], now_s: float) -> dict[str, float]:
    return {name: known.get(name, now_s) for name in sorted(names)}
