"""Remembers which worker had each beginning of a prompt last, from the dispatches in the log, by the calls' keys.

The keys are in two generations. When the newer one is full, it becomes the older one, and what was the older one is
dropped as a whole: so a key is kept while GENERATION other keys are noted after it, and no step takes long. The bound
depends on the entries alone. An older version of headgate keeps no holders, so a copy that begins at its snapshot has
none of those before: it may place calls elsewhere, and its facts say where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dispatcher.model.prefixes import split_keys

GENERATION = 32_768
"""About 10,000 dispatches, and 7 MB in both generations."""

_Before = tuple[dict[str, str], dict[str, str], dict[str, str | None]]
"""Both generations, and the noted keys with their workers in the newer one (None: it did not have the key)."""


class PrefixHolders:
    def __init__(self) -> None:
        self._newer: dict[str, str] = {}
        self._older: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def of(self, keys: str) -> Iterator[str]:
        """Yield the workers that had these beginnings last, that of the first key first."""
        for key in split_keys(keys):
            name = self._newer.get(key) or self._older.get(key)
            if name is not None:
                yield name

    def note(self, keys: str, worker: str) -> _Before:
        """Note that the worker has these beginnings now. Return what `restore` needs."""
        newer, each = self._newer, split_keys(keys)
        before: _Before = (newer, self._older, {key: newer.get(key) for key in each})
        for key in each:
            newer[key] = worker
        if len(newer) >= GENERATION:
            self._newer, self._older = {}, newer
        return before

    def restore(self, before: _Before) -> None:
        """Take the last `note` back."""
        self._newer, self._older, workers = before
        for key, worker in workers.items():
            if worker is None:
                del self._newer[key]
            else:
                self._newer[key] = worker

    def rows(self) -> list[list[Any]]:
        """Return the rows of a snapshot: key, worker, and 1 for the newer generation."""
        generations = enumerate((self._older, self._newer))
        return [[key, names[key], number] for number, names in generations for key in sorted(names)]

    def load(self, rows: Iterable[list[Any]]) -> None:
        """Read the rows of a snapshot."""
        for key, worker, is_newer, *_ in rows:
            (self._newer if is_newer else self._older)[key] = worker
