"""Timers that fire at a decode step."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SLACK = 64
"""Entries that the heap may hold beyond twice the number of timers."""


class StepTimers:
    """Holds at most one timer for each name. Setting, moving and cancelling are O(log timers) amortized; finding that
    no timer is due is O(1).

    A moved or cancelled timer leaves a stale heap entry, which is dropped when it reaches the top or when stale entries
    outnumber the timers.
    """

    __slots__ = ("_heap", "_steps")

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def set(self, name: str, step: int) -> None:
        """Set or move the timer of a name."""
        self._steps[name] = step
        heappush(self._heap, (step, name))
        if len(self._heap) > 2 * len(self._steps) + SLACK:
            self._heap = [(due, other) for other, due in self._steps.items()]
            heapify(self._heap)

    def cancel(self, name: str) -> bool:
        """Return whether the name had a timer."""
        return self._steps.pop(name, None) is not None

    def pop_due(self, by_step: int) -> tuple[int, str] | None:
        """Remove and return the earliest timer due at `by_step` or before, ties by name; None if no timer is due."""
        heap = self._heap
        while heap and heap[0][0] <= by_step:
            step, name = heappop(heap)
            if self._steps.get(name) == step:
                del self._steps[name]
                return step, name
        return None
