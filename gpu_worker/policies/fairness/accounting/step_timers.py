"""What is due at which decode step. Moving an entry and striking it out are as cheap as entering it."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SLACK = 64
"""Entries that were moved or struck out and may be kept, beyond as many as there are valid ones."""


class StepTimers:
    """One step for each name: a heap whose entries that are no longer valid are dropped at the top, or when they
    outnumber the others. O(log names) an entry, O(1) to see that nothing is due."""

    __slots__ = ("_heap", "_steps")

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def set(self, name: str, step: int) -> None:
        """Due at `step`, and no longer when it was."""
        self._steps[name] = step
        heappush(self._heap, (step, name))
        if len(self._heap) > 2 * len(self._steps) + SLACK:
            self._heap = [(due, other) for other, due in self._steps.items()]
            heapify(self._heap)

    def cancel(self, name: str) -> bool:
        """Whether it was there."""
        return self._steps.pop(name, None) is not None

    def pop_due(self, by_step: int) -> tuple[int, str] | None:
        """The first that is due at `by_step` or before, taken out; ties by name."""
        heap = self._heap
        while heap and heap[0][0] <= by_step:
            step, name = heappop(heap)
            if self._steps.get(name) == step:
                del self._steps[name]
                return step, name
        return None
