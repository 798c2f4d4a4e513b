"""Who has the lowest number, where numbers mostly rise: a heap whose keys may be stale, corrected at the top.

An entry is the number when it was pushed: a lower bound, as long as numbers only rise. A stale one at the top is
replaced by today's. Each rise causes at most one such replacement, whatever else rose meanwhile: O(log members)
amortized, and no cost at all while a number changes. Where a number falls, a fresh entry is pushed; the old one is
dropped when it comes up, or when such entries outnumber the others.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

SLACK = 64
"""Entries kept beyond twice the members, before they are tidied."""


class LazyMinHeap:
    """Names by `key(name)`, ties by name: the same events give the same order."""

    __slots__ = ("_heap", "_key", "_members")

    def __init__(self, key: Callable[[str], float]) -> None:
        self._key = key
        self._members: set[str] = set()
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def entries(self) -> int:
        """Of the heap, stale ones too."""
        return len(self._heap)

    def add(self, name: str) -> None:
        self._members.add(name)
        self._push(name)

    def remove(self, name: str) -> None:
        """Nothing happens where it is not there."""
        self._members.discard(name)

    def key_decreased(self, name: str) -> None:
        """Its key is lower than it was. Nothing happens where it is not there."""
        if name in self._members:
            self._push(name)

    def lowest(self) -> tuple[float, str] | None:
        """Left where it is."""
        heap, members, key_of = self._heap, self._members, self._key
        while heap:
            pushed, name = heap[0]
            if name not in members:
                heappop(heap)
                continue
            key = key_of(name)
            if key == pushed:
                return heap[0]
            if key > pushed:
                heapreplace(heap, (key, name))
            else:
                heappop(heap)
        return None

    def _push(self, name: str) -> None:
        heappush(self._heap, (self._key(name), name))
        if len(self._heap) > 2 * len(self._members) + SLACK:
            self._heap = [(self._key(member), member) for member in self._members]
            heapify(self._heap)
