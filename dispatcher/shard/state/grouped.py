"""A dict with its keys in groups, so that a part of it can be checked with each entry of the log (forgetting.py).

A key's group follows from its first two names alone. So all copies of a shard check the same keys with an entry.
"""

from __future__ import annotations

from typing import Any, TypeVar
from zlib import crc32

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")

GROUPS = 512
FEW = 512
"""With so many keys or fewer, all of them are one group."""


def group_of(key: tuple[Any, ...]) -> int:
    """Return the number of the key's group, from 0. The key begins with two texts."""
    return crc32(f"{key[0]}\0{key[1]}".encode()) % GROUPS


class GroupedDict(dict[K, V]):
    """Change it by item assignment, `del` and `pop` only."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[int, set[K]] = {}

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self:
            self._groups.setdefault(group_of(key), set()).add(key)
        super().__setitem__(key, value)

    replace = dict.__setitem__
    """Assigns the value of a key that is there."""

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._discard(key)

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            self._discard(key)
        return super().pop(key, *default)

    def due(self, number: int, *, is_minute: bool) -> list[K]:
        """Return the keys to check with the entry at position `number`. `is_minute`: it begins a minute. Few keys are
        checked together once a minute, otherwise a group with each entry."""
        if len(self) <= FEW:
            return list(self) if is_minute else []
        return list(self._groups.get(number % GROUPS, ()))

    def _discard(self, key: K) -> None:
        number = group_of(key)
        group = self._groups[number]
        group.discard(key)
        if not group:
            del self._groups[number]
