"""A line: what waits, in the order of arrival. Leaving from the middle is as cheap as from the head."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

GARBAGE_MAX = 16
"""Places of those who left that the heap may keep, beyond as many as are still in line."""


class ArrivalQueue(Generic[T]):
    """A heap of places, and who stands there: a place whose holder left is dropped when it comes to the head, or when
    such places outnumber the others. One number a member: there may be a million lines with one member each."""

    __slots__ = ("_members", "_places")

    def __init__(self) -> None:
        self._members: dict[int, T] = {}
        self._places: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, place: int, member: T) -> None:
        """O(log n), also for one that returns to an earlier place."""
        self._members[place] = member
        heappush(self._places, place)

    def head(self) -> T:
        """Raises IndexError if nobody is in line."""
        while self._places[0] not in self._members:
            heappop(self._places)
        return self._members[self._places[0]]

    def remove(self, place: int) -> T:
        member = self._members.pop(place)
        if self._places[0] == place:
            heappop(self._places)
        elif len(self._places) > 2 * len(self._members) + GARBAGE_MAX:
            self._places = list(self._members)
            heapify(self._places)
        return member
