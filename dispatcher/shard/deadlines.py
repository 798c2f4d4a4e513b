"""The deadlines of waiting calls, in a heap. The entry of a call that no longer waits is dead, and is dropped later."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf

from dispatcher.policies.orders.queues import Call

SLACK = 64
"""The heap may hold two entries for each call, and SLACK more, before all dead entries are dropped."""

DUE_MAX = 20_000
"""The most calls that expire in one entry of the log. Their facts fill a third of it. The next tick takes the
others."""


class Deadlines:
    """`calls`: the shard's calls by id. An entry is dead if its call is not in `calls`, or runs."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, call: Call) -> None:
        """Add a call that begins to wait."""
        heappush(self._heap, (call.deadline_at, call.id))
        if len(self._heap) > 2 * len(self._calls) + SLACK:
            self._heap = [(each.deadline_at, each.id) for each in self._calls.values() if not each.worker]
            heapify(self._heap)

    def take_due(self, now: float) -> list[str]:
        """Return the ids of up to DUE_MAX waiting calls after their deadline, and drop their entries."""
        due: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now and len(due) < DUE_MAX:
            call_id = heappop(self._heap)[1]
            call = self._calls.get(call_id)
            if call is not None and not call.worker and call.deadline_at <= now:
                due[call_id] = None
        return list(due)

    def next(self) -> float:
        """Return the earliest deadline of a waiting call; infinity if none waits."""
        while self._heap:
            deadline_at, call_id = self._heap[0]
            call = self._calls.get(call_id)
            if call is not None and not call.worker and call.deadline_at == deadline_at:
                return deadline_at
            heappop(self._heap)
        return inf
