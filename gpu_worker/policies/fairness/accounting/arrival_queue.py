"""A queue in the order of arrival, from which a member can also leave in the middle."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

STALE_PLACES_MAX = 16
"""Stale places that the heap may keep beyond the number of members."""


class ArrivalQueue(Generic[T]):
    """Members by place, the number in the order of arrival. Adding and removing are O(log n) amortized.

    The places form a heap. The place of a member that left becomes stale; it is dropped when it reaches the head, or
    when stale places outnumber the members. Each member costs one number, because there may be a million queues of one
    member.
    """

    __slots__ = ("_members", "_places")

    def __init__(self) -> None:
        self._members: dict[int, T] = {}
        self._places: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, place: int, member: T) -> None:
        """Add a member, which may return to an earlier place."""
        self._members[place] = member
        heappush(self._places, place)

    def head(self) -> T:
        """Return the member of the lowest place. Raises IndexError if the queue is empty."""
        while self._places[0] not in self._members:
            heappop(self._places)
        return self._members[self._places[0]]

    def remove(self, place: int) -> T:
        member = self._members.pop(place)
        if self._places[0] == place:
            heappop(self._places)
        elif len(self._places) > 2 * len(self._members) + STALE_PLACES_MAX:
            self._places = list(self._members)
            heapify(self._places)
        return member
