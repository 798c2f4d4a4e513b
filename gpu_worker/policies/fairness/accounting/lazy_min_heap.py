"""A heap of names with keys that mostly rise: a stale entry is corrected only when it reaches the top.

An entry holds the key at the time of its push. While keys only rise, this is a lower bound of the current key. When a
stale entry is at the top, the current key replaces it. A rise costs at most one such replacement, whatever the other
keys do, so `lowest` is O(log names) amortized and a rising key costs nothing at all. A key that falls must be
announced (`key_decreased`), which pushes a fresh entry. Its old entry is dropped when it reaches the top, or when
stale entries outnumber the names.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

SLACK = 64
"""Entries that the heap may hold beyond twice the number of names."""


class LazyMinHeap:
    """Orders names by `key(name)` and ties by name, so that the same events give the same order."""

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
        """Return the number of heap entries, stale ones included."""
        return len(self._heap)

    def add(self, name: str) -> None:
        self._members.add(name)
        self._push(name)

    def remove(self, name: str) -> None:
        """Remove a name if it is present."""
        self._members.discard(name)

    def key_decreased(self, name: str) -> None:
        """Correct the position of a name after its key fell. An absent name is ignored."""
        if name in self._members:
            self._push(name)

    def lowest(self) -> tuple[float, str] | None:
        """Return the lowest key and its name, which stays in the heap; None if the heap is empty."""
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
