"""Named tuples as compact JSON arrays: a letter for the kind, then the fields in order. Pure.

A peer is authenticated (authentication.py) but may run another version. So the type of each field is checked: a wrong
field closes one connection and does not stop the leader.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from dispatcher.model.errors import BadFrame

NUMBER = (int, float)


class _Field(NamedTuple):
    accepted: tuple[type, ...]
    is_list: bool
    is_bool: bool


def _field(hint: Any) -> _Field:
    if get_origin(hint) is tuple:
        return _Field((list,), True, False)
    if get_origin(hint) is types.UnionType:
        return _Field(tuple(get_args(hint)), False, bool in get_args(hint))
    return _Field(NUMBER if hint is float else (hint,), False, hint is bool)


class RecordCodec:
    """Packs and unpacks the named tuples of one family. `kinds`: the letter of each class."""

    def __init__(self, kinds: Mapping[str, type[Any]]) -> None:
        self._letters = {kind: letter for letter, kind in kinds.items()}
        self._kinds = {letter: (kind, _fields(kind)) for letter, kind in kinds.items()}

    def pack(self, record: tuple[Any, ...]) -> list[Any]:
        return [self._letters[type(record)], *record]

    def unpack(self, packed: Any) -> Any:
        """Return the named tuple. Raises BadFrame."""
        if type(packed) is not list or not packed or type(packed[0]) is not str or packed[0] not in self._kinds:
            raise BadFrame("A record of an unknown kind.")
        kind, fields = self._kinds[packed[0]]
        values = packed[1:]
        if len(values) != len(fields):
            raise BadFrame(f"A {kind.__name__} has {len(fields)} fields, not {len(values)}.")
        for index, (value, field) in enumerate(zip(values, fields, strict=True)):
            if not _fits(value, field):
                raise BadFrame(f"Field {index} of a {kind.__name__} has the wrong type.")
            if field.is_list:
                values[index] = tuple(value)
        return kind._make(values)


def _fields(kind: type[Any]) -> Sequence[_Field]:
    hints = get_type_hints(kind)
    return tuple(_field(hints[name]) for name in kind._fields)


def _fits(value: Any, field: _Field) -> bool:
    if field.is_list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, field.accepted) and (field.is_bool or not isinstance(value, bool))
