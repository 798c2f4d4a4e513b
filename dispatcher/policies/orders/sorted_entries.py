"""Entries in order, of which any one can be removed: a list of sorted blocks.

A heap with lazy entries is faster on average, but its dead entries end together: after a round of 10,000 tenants whose
calls all cost more than their estimates, one decision dropped 10,000 of them (35 ms). Here a change moves at most two
blocks of pointers, whatever came before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

BLOCK_MOST = 512
"""Entries of a block. A longer one is split, and one with less than a quarter of it joins its neighbour."""

Entry = tuple[Any, ...]
"""A key and what it stands for. No two entries of one list are equal, and all of them can be compared."""


class SortedEntries:
    """`first`: the lowest entry, or None. Read at every decision, so it is an attribute."""

    __slots__ = ("_blocks", "_lasts", "first")

    def __init__(self) -> None:
        self.first: Entry | None = None
        self._blocks: list[list[Entry]] = [[]]
        """The entries in blocks. There is at least one block. A block is empty only if it is the only block."""
        self._lasts: list[Entry] = []
        """The last entry of each block but the last one. So with one block there is nothing to keep."""

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[Entry]:
        for block in self._blocks:
            yield from block

    def add(self, entry: Entry) -> None:
        lasts = self._lasts
        place = bisect_left(lasts, entry) if lasts else 0
        block = self._blocks[place]
        insort(block, entry)
        if place == 0:
            self.first = block[0]
        if len(block) > BLOCK_MOST:
            self._split(place)

    def remove(self, entry: Entry) -> None:
        """Raises KeyError if the entry is not there."""
        blocks, lasts, place, number = self._blocks, self._lasts, 0, 0
        block = blocks[0]
        if entry is not self.first:
            place = bisect_left(lasts, entry) if lasts else 0
            block = blocks[place]
            number = bisect_left(block, entry)
            if number == len(block) or block[number] != entry:
                raise KeyError(entry)
        del block[number]
        if lasts:
            self._shrunk(place)
        if place == 0:
            self.first = blocks[0][0] if blocks[0] else None

    def _shrunk(self, place: int) -> None:
        """Keep the invariants of several blocks, of which this one has lost an entry."""
        block = self._blocks[place]
        if 4 * len(block) < BLOCK_MOST:
            self._join(min(place, len(self._blocks) - 2))
        elif place < len(self._lasts):
            self._lasts[place] = block[-1]

    def _split(self, place: int) -> None:
        block = self._blocks[place]
        half = len(block) // 2
        self._blocks.insert(place + 1, block[half:])
        self._lasts.insert(place, block[half - 1])
        del block[half:]

    def _join(self, place: int) -> None:
        """Make one block of this one and the next, or two of about the same length."""
        block = self._blocks[place]
        block += self._blocks.pop(place + 1)
        del self._lasts[place]
        if place < len(self._lasts):
            self._lasts[place] = block[-1]
        if len(block) > BLOCK_MOST:
            self._split(place)
