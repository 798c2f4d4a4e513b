"""Encodes named tuples as compact JSON arrays: a letter for the kind, then the fields in order. Pure.

The other process is authenticated (authentication.py), but may run another version. So the type of each field is
checked here: a wrong field closes one connection and does not stop the leader. Further fields at the end, of a later
version, are left out, and fields that an earlier version lacks get their defaults (model/formats.py).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from dispatcher.model.call import made, row_defaults, row_hints
from dispatcher.model.errors import BadFrame
from dispatcher.model.formats import NEWEST


class _Field(NamedTuple):
    accepted: frozenset[type]
    """The exact types of the JSON values that are accepted. So a bool is not a number here, as it is in Python."""
    is_list: bool


def _field(hint: Any) -> _Field:
    if get_origin(hint) is tuple:
        return _Field(frozenset({list}), True)
    named = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    return _Field(frozenset({*named, int} if float in named else named), False)


TEXTS = tuple[str, ...]


def _convert_value(value: Any, hint: Any) -> Any:
    """Return a value of JSON as the type that `hint` names. Lists become tuples. Raises TypeError for other values."""
    if hint == TEXTS and all(type(item) is str for item in value):
        return tuple(value)
    if get_origin(hint) is tuple and type(value) is list:
        return tuple(_convert_value(item, get_args(hint)[0]) for item in value)
    if hasattr(hint, "_fields") and type(value) is list and len(value) == len(hint._fields):
        return hint._make(map(_convert_value, value, get_type_hints(hint).values()))
    if get_origin(hint) is tuple or type(value) not in _field(hint).accepted:
        raise TypeError(f"{value!r} is no {hint!r}")
    return value


class _Kind:
    """A class of named tuples, with the types of its fields."""

    def __init__(self, kind: type[Any]) -> None:
        hints = list(row_hints(kind).values())
        self._made = kind
        self._of_row: Callable[[list[Any]], Any] | None = getattr(kind, "of_row", None)
        self._fields = tuple(map(_field, hints))
        self._lists = tuple((index, hints[index]) for index, field in enumerate(self._fields) if field.is_list)
        self._defaults = tuple(row_defaults(kind).values())
        self._fitting: set[tuple[type, ...]] = set()
        """The combinations of types that passed the check. There are only a few: a float field may also get an int."""

    def make(self, values: list[Any]) -> Any:
        """Return the named tuple. Raises BadFrame."""
        if len(values) != len(self._fields):
            values = self._complete(values)
        found = tuple(map(type, values))
        if found not in self._fitting:
            self._check(found)
            self._fitting.add(found)
        for index, hint in self._lists:
            try:
                values[index] = _convert_value(values[index], hint)
            except TypeError:
                raise BadFrame(f"Field {index} of a {self._made.__name__} has the wrong type.") from None
        return made(self._made, values) if self._of_row is None else self._of_row(values)

    def _complete(self, values: list[Any]) -> list[Any]:
        """Return the values of this version's fields."""
        missing = len(self._fields) - len(values)
        if missing > len(self._defaults):
            raise BadFrame(f"A {self._made.__name__} has {len(self._fields)} fields, not {len(values)}.")
        return [*values, *self._defaults[-missing:]] if missing > 0 else values[:missing]

    def _check(self, found: Sequence[type]) -> None:
        for index, (each, field) in enumerate(zip(found, self._fields, strict=True)):
            if each not in field.accepted:
                raise BadFrame(f"Field {index} of a {self._made.__name__} has the wrong type.")


class RecordCodec:
    """Packs and unpacks the named tuples of one family. `kinds`: the letter of each class. `fields_before`: the number
    of fields in format OLDEST, of the classes that have more since."""

    def __init__(
        self, kinds: Mapping[str, type[Any]], fields_before: Mapping[type[Any], int] = MappingProxyType({})
    ) -> None:
        self._before = dict(fields_before)
        self._letters = {kind: letter for letter, kind in kinds.items()}
        self._kinds = {letter: _Kind(kind) for letter, kind in kinds.items()}

    def pack(self, record: Any, reads: int = NEWEST) -> list[Any]:
        """Return the record for a process that reads this format."""
        kind = type(record)
        if reads < NEWEST and kind in self._before:
            record = record[: self._before[kind]]
        return [self._letters[kind], *(record.row() if hasattr(kind, "row") else record)]

    def unpack(self, packed: Any) -> Any:
        """Return the named tuple. Raises BadFrame."""
        if type(packed) is not list or not packed or type(packed[0]) is not str or packed[0] not in self._kinds:
            raise BadFrame("A record of an unknown kind.")
        return self._kinds[packed[0]].make(packed[1:])
