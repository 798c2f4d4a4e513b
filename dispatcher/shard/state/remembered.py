"""What a shard remembers for a time: usage and interactions in groups of their keys, and the ends of calls.

The keys of a `GroupedDict` are in groups, so that a part of it can be checked with each entry of the log
(forgetting.py). A key's group follows from its first two names alone. So all copies of a shard check the same keys with
an entry.

The ends of calls are kept for a time, so that a repeated command gets the answer of the first one. An end has no time
of its own. So marks stand between the ends, at most one for each second of the log:

    end, end, mark(17), end, mark(18), end        the first two ended at 17 or before, the third at 18 or before

A mark has the time of the first entry of a later second. So an outage, in which the log has no entries, does not count.
A mark is a row like an end, of an id that no call has. So snapshots contain the marks, and each copy of a shard drops
the same ends at the same entry. (A process of an older version drops the oldest rows, ends and marks alike.)
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import ceil
from typing import Any, TypeVar
from zlib import crc32

from dispatcher.model.commands import Over

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")

_GROUPS = 512
FEW = 512
"""With so many keys or fewer, all of them are one group."""


def _group_of(key: tuple[Any, ...]) -> int:
    """Return the number of the key's group, from 0. The key begins with two texts."""
    return crc32(f"{key[0]}\0{key[1]}".encode()) % _GROUPS


class GroupedDict(dict[K, V]):
    """Change it by item assignment, `del` and `pop` only."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[int, set[K]] = {}

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self:
            self._groups.setdefault(_group_of(key), set()).add(key)
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
        return list(self._groups.get(number % _GROUPS, ()))

    def _discard(self, key: K) -> None:
        number = _group_of(key)
        group = self._groups[number]
        group.discard(key)
        if not group:
            del self._groups[number]


INTERACTIONS_MOST = 10_000
"""The most interactions of a tenant that are remembered. The calls of further ones are throttled like first calls."""

_Key = tuple[str, str]
"""A tenant and an interaction."""


class Interactions(GroupedDict[_Key, float]):
    """When the last call of each interaction under way was accepted, in Unix seconds. It counts those of each tenant.

    Only throttling needs them, and clients choose their names.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def __setitem__(self, key: _Key, at: float) -> None:
        if key not in self:
            self._counts[key[0]] += 1
        super().__setitem__(key, at)

    def __delitem__(self, key: _Key) -> None:
        super().__delitem__(key)
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]

    def has_room(self, key: _Key) -> bool:
        """Return whether the interaction is remembered, or may be."""
        return key in self or self._counts[key[0]] < INTERACTIONS_MOST

    def restore(self, key: _Key, at: float | None) -> None:
        """Set the time of an interaction; None: forget it."""
        if at is None:
            del self[key]
        else:
            self[key] = at


ENDS_KEPT_S = 30.0
"""An end is kept for this time by the clock of the log, if there are not too many. A takeover takes less than a second,
and a process that sends nothing for 10 s counts as gone."""
ENDS_LEAST = 4_096
"""So many ends are kept however old they are."""
ENDS_MOST = 65_536
"""More ends are never kept. At 2,000 calls a second, as much as a shard carries, there are 60,000."""
DROPPED_MOST = 1_000
"""Most ends that are dropped for their age with one entry."""
_MARKS_TRIED = 60
"""A log that was idle for longer drops its old ends when a later mark is old."""
_MARK = "@"


class Ends(OrderedDict[str, Over]):
    """`none_old_at`: the second for which no old mark was found. The next old one is of a later second."""

    none_old_at = 0


def mark_second(ends: Ends, now: float) -> None:
    """Mark the ends so far. Call this with the first entry of a second of the log. `now` is in Unix seconds."""
    if ends and not next(reversed(ends)).startswith(_MARK):
        name = f"{_MARK}{int(now) + 1}"
        ends[name] = Over(name, 0, "")


def drop_old(ends: Ends, now: float) -> None:
    """Drop the oldest ends beyond ENDS_MOST, and those that are older than ENDS_KEPT_S, at most DROPPED_MOST. Call this
    after each entry."""
    if len(ends) <= ENDS_LEAST:
        return
    while len(ends) > ENDS_MOST:
        ends.popitem(last=False)
    if ends.none_old_at == _newest_old(now):
        return
    last = _last_old_mark(ends, now)
    if last is None:
        ends.none_old_at = _newest_old(now)
        return
    for _ in range(min(DROPPED_MOST, len(ends) - ENDS_LEAST)):
        if ends.popitem(last=False)[0] == last:
            return


def _newest_old(now: float) -> int:
    """Return the newest second whose ends are all older than ENDS_KEPT_S."""
    return ceil(now - ENDS_KEPT_S) - 1


def _last_old_mark(ends: Ends, now: float) -> str | None:
    """Return the newest mark that is older than ENDS_KEPT_S, if it is among the _MARKS_TRIED newest that there can be.
    Before it are all older ones."""
    newest = _newest_old(now)
    names = (f"{_MARK}{second}" for second in range(newest, newest - _MARKS_TRIED, -1))
    return next((name for name in names if name in ends), None)
