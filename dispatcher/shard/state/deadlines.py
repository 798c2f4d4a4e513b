"""The deadlines of waiting calls, in a heap. The entry of a call that no longer waits is dead, and is dropped later.

With too many dead entries a sweep begins. It stops nothing, however long the heap is: the heap is put aside, and with
each call that begins to wait, SWEPT entries move from its end to a new heap, without the dead ones. (A heap without its
last entry is a heap.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf

from dispatcher.policies.orders.queues import Call

SLACK = 64
"""The heaps may hold two entries for each call, and SLACK more. A sweep begins at three quarters of it."""
SWEPT = 8

DUE_MAX = 400
"""The most calls that expire in one entry of the log, as many as an entry has commands, so that it does not stop a
leader for longer. The next tick takes the others, 50 ms later."""


class Deadlines:
    """`calls`: the shard's calls by id. An entry is dead if its call is not in `calls`, or runs."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._heap: list[tuple[float, str]] = []
        self._old: list[tuple[float, str]] = []
        """The rest of the heap from before the sweep; empty if there is no sweep."""
        self._moved: set[str] = set()
        """During a sweep, the calls with an entry that was moved. A second one is dropped."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def add(self, call: Call) -> None:
        """Add a call that begins to wait."""
        heappush(self._heap, (call.terms.deadline_at, call.id))
        if self._old:
            self._move(self._old[-SWEPT:])
            del self._old[-SWEPT:]
        elif 4 * len(self._heap) > 3 * (2 * len(self._calls) + SLACK):
            self._heap, self._old = [], self._heap
            self._moved.clear()

    def take_due(self, now: float) -> list[str]:
        """Return the ids of up to DUE_MAX waiting calls after their deadline, and drop their entries."""
        due: dict[str, None] = {}
        while self._has_head() and self._heap[0][0] <= now and len(due) < DUE_MAX:
            call_id = heappop(self._heap)[1]
            call = self._calls.get(call_id)
            if call is not None and not call.worker and call.terms.deadline_at <= now:
                due[call_id] = None
        return list(due)

    def next(self) -> float:
        """Return the earliest deadline of a waiting call; infinity if none waits."""
        while self._has_head():
            if self._is_live(self._heap[0]):
                return self._heap[0][0]
            heappop(self._heap)
        return inf

    def _has_head(self) -> bool:
        """Return whether there is an entry; the first one is then the head of `_heap`."""
        while self._old and (not self._heap or self._old[0] < self._heap[0]):
            self._move((heappop(self._old),))
        return bool(self._heap)

    def _move(self, entries: Iterable[tuple[float, str]]) -> None:
        """Move entries of the old heap, without those that are dead or whose calls have another one."""
        moved, calls = self._moved, self._calls
        for entry in entries:
            deadline_at, call_id = entry
            call = calls.get(call_id)
            if call is None or call.worker or call.terms.deadline_at != deadline_at or call_id in moved:
                continue
            moved.add(call_id)
            heappush(self._heap, entry)

    def _is_live(self, entry: tuple[float, str]) -> bool:
        deadline_at, call_id = entry
        call = self._calls.get(call_id)
        return call is not None and not call.worker and call.terms.deadline_at == deadline_at
