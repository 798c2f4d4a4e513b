"""Encodes entries as compact JSON, compressed if they are long. A fact is a list of its kind and its fields."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from dispatcher.model.call import made, row_defaults, row_hints
from dispatcher.model.errors import LogCorrupt, LogNewer
from dispatcher.model.exact_json import read_json, write_json
from dispatcher.model.facts import (
    Accepted,
    Cancelling,
    Dispatched,
    Dropped,
    Ended,
    Entry,
    Fact,
    Held,
    ModelOrdered,
    OrderSet,
    Planned,
    ProcessLost,
    ProcessSet,
    Returned,
    TenantSet,
    UsageSaved,
    WorkerLost,
    WorkerSet,
)
from dispatcher.model.fleet import GroupPlan, LoadableModel, WorkerPlan
from dispatcher.model.formats import NEWEST, OLDEST, SKIPPABLE

COMPRESSED_FROM_BYTES = 1024
PLAIN, _COMPRESSED = b"j", b"z"

_KINDS: dict[str, type[Any]] = {
    "O": OrderSet,
    "W": WorkerSet,
    "m": ModelOrdered,
    "n": Planned,
    "w": WorkerLost,
    "P": ProcessSet,
    "p": ProcessLost,
    "T": TenantSet,
    "a": Accepted,
    "d": Dispatched,
    "r": Returned,
    "e": Ended,
    "x": Dropped,
    "h": Held,
    "c": Cancelling,
    "u": UsageSaved,
}
"""A new kind of fact that readers must not miss needs a new format, so that older readers stop instead of misreading
the log. A kind that they may miss has a letter that begins with SKIPPABLE."""
_FIELDS_BEFORE = {OrderSet: 1, Ended: 9, Dropped: 6, Accepted: 16, ModelOrdered: 2, WorkerSet: 12}
"""The number of fields in format OLDEST, of the kinds that have more since."""
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_HEAD = (int, str, str, int, list)
"""The types of an entry's position, writer, leader, epoch and facts."""
_FROM_LISTS: dict[str, Callable[[list[Any]], tuple[Any, ...]]] = {
    "clocks": tuple,
    "calls": tuple,
    "capabilities": tuple,
    "expected_per_s": tuple,
    "models": lambda models: tuple(map(LoadableModel.of, models)),
    "workers": lambda workers: tuple(map(WorkerPlan.of, workers)),
    "groups": lambda groups: tuple(map(GroupPlan.of, groups)),
}
"""Makes the value of a field that is a tuple, by the field's name. JSON has lists only."""
_NAMES = {letter: tuple(row_hints(kind)) for letter, kind in _KINDS.items()}
"""Maps a letter to the names of the fields in a row."""
_ROWS = (Accepted, TenantSet)
"""The kinds that hold the terms of a call or a tenant's configuration, which a row has field by field."""
_READERS = {
    letter: (
        kind,
        len(_NAMES[letter]),
        [(place, _FROM_LISTS[name]) for place, name in enumerate(_NAMES[letter]) if name in _FROM_LISTS],
    )
    for letter, kind in _KINDS.items()
}
"""Maps a letter to the kind, the number of its fields, and the places of the fields that are tuples."""

_CLOCKS = {
    letter: next((place for place, _ in tuples), -1)
    for letter, (_, _, tuples) in _READERS.items()
    if all(_NAMES[letter][place] == "clocks" for place, _ in tuples)
}
"""Maps a kind with plain fields to the place of the tenant's clocks, a tuple of numbers; -1 if it has none."""
_HINTS: dict[type[Any], tuple[Any, ...]] = {}
_DECODED: set[tuple[Any, ...] | None] = set()
"""The shapes of facts that decoded to themselves. There are few: a float may also be an integer."""


def encode_entry(entry: Entry, of_format: int = NEWEST, *, checked: bool = False) -> bytes:
    """Return the entry's bytes in a format. Raises ValueError or TypeError for a value that JSON does not have (NaN,
    half of a surrogate pair), and for one that the format does not have.

    `checked`: raise ValueError unless the bytes decode to this entry, with fields of the right types. The facts of a
    decision were folded when they were decided (fold.py). So every copy of the shard can fold an entry that decodes
    to the same facts. A fact of plain fields is decoded only if no fact with fields of the same types was decoded
    before: JSON keeps every text, integer, finite float, truth value and null as it is, so the types alone decide
    whether a fact decodes to itself.
    """
    facts: list[list[Any]] = [
        [_LETTERS[type(fact)], *(fact.row() if isinstance(fact, _ROWS) else fact)] for fact in entry.facts
    ]
    if of_format < NEWEST:
        facts = list(map(_of_older_format, facts))
    text = write_json([of_format, entry.position, entry.at, entry.writer, entry.leader, entry.epoch, facts])
    if checked:
        _check(entry, facts, text)
    return _compress(text)


def _of_older_format(row: list[Any]) -> list[Any]:
    """Return a fact's row in format OLDEST. Raises ValueError for a value that this format does not have."""
    letter, *fields = row
    kind = _KINDS[letter]
    size = _FIELDS_BEFORE.get(kind, len(fields))
    defaults = row_defaults(kind)
    for name, value in zip(_NAMES[letter][size:], fields[size:], strict=False):  # a row may lack its last field
        if value != defaults[name]:
            raise ValueError(f"format {OLDEST} has no {name} in a {kind.__name__}")
    return row[: size + 1]


def _shape(row: list[Any]) -> tuple[Any, ...] | None:
    """Return the letter of a fact's row and the types of its fields; None if it has fields of several parts."""
    place = _CLOCKS.get(row[0])
    if place is None:
        return None
    if place < 0:
        return (row[0], *map(type, row))
    return (row[0], *map(type, row), *map(type, row[place + 1]))


def _fits(value: Any, hint: Any) -> bool:
    """Return whether the value has the type that the hint names. An integer fits a float, a truth value does not."""
    if get_origin(hint) is tuple:
        return type(value) is tuple and all(_fits(item, get_args(hint)[0]) for item in value)
    if hasattr(hint, "_fields"):
        return type(value) is hint and all(map(_fits, value, _HINTS.setdefault(hint, _hints(hint))))
    if get_origin(hint) is UnionType:
        return any(_fits(value, each) for each in get_args(hint))
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and type(value) is not bool
    return isinstance(value, hint)


def _hints(kind: type[Any]) -> tuple[Any, ...]:
    """Return the types of a named tuple's fields."""
    return tuple(get_type_hints(kind).values())


def _check(entry: Entry, rows: list[list[Any]], text: bytes) -> None:
    """Raise ValueError unless the text decodes to the entry, and TypeError for a field of another type than its kind's.

    Such a field may be folded in one copy and not in another one: a heap compares names only if their keys are equal.
    """
    for row in rows:
        if _shape(row) not in _DECODED:
            break
    else:
        return
    try:
        is_same = _entry(read_json(text)) == entry
    except LogCorrupt as error:
        raise ValueError(f"the entry does not decode: {error}") from error
    if not is_same:
        raise ValueError("the entry decodes to other facts")
    for fact in entry.facts:
        if not _fits(fact, type(fact)):
            raise TypeError(f"a {type(fact).__name__} has a field of a wrong type")
    _DECODED.update(shape for row in rows if (shape := _shape(row)) is not None)


def decode_entry(data: bytes) -> Entry:
    """Return the entry. Raises LogCorrupt if the bytes are no entry, or an entry of a newer version."""
    [fields, *_] = unpack(data)
    return _entry(fields)


def _entry(fields: Any) -> Entry:
    """Return the entry of these fields. Raises LogCorrupt."""
    try:
        version, position, at, writer, leader, epoch, facts, *_ = fields
        if version > NEWEST:
            raise LogNewer(f"entry {position} has format {version}, newer than {NEWEST}: update this process")
        head = (type(position), type(writer), type(leader), type(epoch), type(facts))
        if head != _HEAD or not isinstance(at, int | float):
            raise TypeError(f"the head of entry {position!r} has fields of wrong types")
        read = _fact if version > OLDEST else _whole_fact
        known = [fact for item in facts if (fact := read(item)) is not None]
        return Entry(position, at, writer, leader, epoch, tuple(known))
    except (ValueError, TypeError, KeyError) as error:
        raise LogCorrupt(f"it is no entry: {error!r}") from None


def decode_entry_at(position: int, data: bytes) -> Entry:
    """Return the entry that the log has at this position. Raises LogCorrupt, which names the position."""
    try:
        return decode_entry(data)
    except LogNewer:
        raise
    except LogCorrupt as error:
        raise LogCorrupt(f"entry {position} cannot be read: {error}") from None


def pack(*values: object) -> bytes:
    """Return the values as lines of JSON, compressed from COMPRESSED_FROM_BYTES on."""
    return _compress(b"\n".join(map(write_json, values)))


def _compress(text: bytes) -> bytes:
    return PLAIN + text if len(text) < COMPRESSED_FROM_BYTES else _COMPRESSED + zlib.compress(text, 1)


def unpack(data: bytes) -> list[Any]:
    """Return the values of `pack`. Raises LogCorrupt."""
    try:
        text = data[1:] if data[:1] == PLAIN else zlib.decompress(data[1:])
        return [read_json(line) for line in text.split(b"\n")]
    except (ValueError, zlib.error) as error:
        raise LogCorrupt(f"the log holds bytes that do not decode: {error}") from None


def _fact(item: list[Any]) -> Fact | None:
    """Return the fact, without further fields of a later version; None for a kind that may be skipped."""
    letter, *fields = item
    if letter not in _READERS and letter[:1] == SKIPPABLE:
        return None
    kind, size, tuples = _READERS[letter]
    for place, from_list in tuples:
        if place < len(fields):
            fields[place] = from_list(fields[place])
    if kind in _ROWS:
        return _of_row(kind, fields[:size], size)
    fact: Fact = made(kind, fields[:size]) if len(fields) >= size else kind(*fields)
    return fact


def _of_row(kind: type[Any], fields: list[Any], size: int) -> Fact:
    """Return the fact of a row. Raises TypeError for a row that lacks fields without a default."""
    missing = size - len(fields)
    if missing:
        defaults = tuple(row_defaults(kind).values())
        if missing > len(defaults):
            raise TypeError(f"a {kind.__name__} has {size} fields, not {len(fields)}")
        fields += defaults[-missing:]
    fact: Fact = kind.of_row(fields)
    return fact


def _whole_fact(item: list[Any]) -> Fact:
    """Return a fact of format OLDEST. Raises TypeError for further fields, and KeyError for an unknown kind."""
    kind, size, _ = _READERS[item[0]]
    if len(item) > _FIELDS_BEFORE.get(kind, size) + 1:
        raise TypeError(f"a {kind.__name__} has too many fields")
    fact = _fact(item)
    assert fact is not None  # noqa: S101 - its kind is known
    return fact
