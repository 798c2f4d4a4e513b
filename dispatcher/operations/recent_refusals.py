"""The gate's recent refusals. A process repeats them for the same queue without a question to the gate.

Under overload most calls are refused. A refusal by the gate costs the front a parsed body and a task, and the leader a
decision. A repeated refusal costs neither. It is repeated only for so short a time that the full queue does not run
empty meanwhile. A tenant has one queue in each pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.model.errors import Refused

Queue = tuple[str, str]
"""The names of its pool and its tenant."""


class RecentRefusals:
    """The last refusal of each queue, kept for `within_s` seconds. Times are monotonic seconds."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._kept: dict[Queue, tuple[float, Refused]] = {}
        """Oldest first."""

    def note(self, queue: Queue, refusal: Refused, now: float) -> None:
        """Remember that the gate refused a call of the queue."""
        self._kept.pop(queue, None)
        self._kept[queue] = now, refusal
        while self._is_old(next(iter(self._kept.values()))[0], now):
            del self._kept[next(iter(self._kept))]

    def check(self, queue: Queue, now: float) -> None:
        """Raise the queue's last refusal again if it is recent. Raises Refused."""
        if (refusal := self._recent(queue, now)) is not None:
            raise Refused(refusal.message, refusal.code, refusal.retry_after_s)

    def check_all(self, queues: Iterable[Queue], now: float) -> None:
        """Raise a refusal again if each of the queues has a recent one. Raises Refused."""
        queues = tuple(queues)
        if all(self._recent(queue, now) is not None for queue in queues):
            self.check(queues[0], now)

    def _recent(self, queue: Queue, now: float) -> Refused | None:
        at, refusal = self._kept.get(queue, (now, None))
        return None if self._is_old(at, now) else refusal

    def __len__(self) -> int:
        return len(self._kept)

    def _is_old(self, at: float, now: float) -> bool:
        return now >= at + self._within_s
