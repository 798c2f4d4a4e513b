"""Reads an object by its table: refuses, drops, checks and keeps its fields. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dispatcher.fields.kinds import Field, FieldTable, Kind, Need
from dispatcher.fields.reading import Reading, invalid, missing, unsupported


def read_fields(given: Mapping[str, Any], table: FieldTable, prefix: str, reading: Reading) -> dict[str, Any]:
    """Return the fields that the gate reads or passes on, checked. `prefix` is the object's place, such as `tools.0.`.

    Raises InvalidRequest.
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        field = table.fields.get(name)
        if field is None:
            _read_elsewhere(name, value, table, prefix, reading)
        elif _is_kept(field, value, prefix + name):
            kept[name] = field.shape.read(value, prefix + name, reading)
    for name, field in table.fields.items():
        if field.required and name not in kept:
            raise missing(prefix + name)
    return kept


def needs_of(kept: Mapping[str, Any], table: FieldTable, prefix: str = "") -> Iterator[Need]:
    """Yield what the fields need of the model's workers. `kept` is what `read_fields` has returned."""
    for name, value in kept.items():
        field = table.fields[name]
        if field.is_usual(value):
            continue
        if field.capability:
            yield prefix + name, field.capability
        yield from field.shape.needs(value, prefix + name)


def _is_kept(field: Field, value: Any, at: str) -> bool:
    """Return whether the field is read or passed on. Raises InvalidRequest if it is refused."""
    if value is None and field.required:
        raise invalid(at, "null is not a value of this parameter")
    if field.is_neutral(value) or field.kind is Kind.LABEL:
        return False
    if field.kind is Kind.OURS:
        raise unsupported(at, f"`{at}` cannot be sent by a client: headgate sets it. {field.note}".rstrip())
    if field.kind is Kind.REFUSED:
        raise _not_neutral(at, field)
    return True


def _read_elsewhere(name: str, value: Any, table: FieldTable, prefix: str, reading: Reading) -> None:
    field = table.elsewhere.get(name)
    if field is None:
        reading.unknown(prefix + name)
    elif not field.is_neutral(value) and not field.is_usual(value) and field.kind is not Kind.LABEL:
        raise _not_neutral(prefix + name, field)


def _not_neutral(at: str, field: Field) -> Exception:
    others = (*field.neutral, *field.usual)
    advice = f" {field.note}" if field.note and field.kind is Kind.REFUSED else ""
    if not others:
        return unsupported(at, f"`{at}` is not supported: leave it out.{advice}")
    values = " or ".join(["null", *map(json.dumps, others)])
    return unsupported(at, f"`{at}` is not supported at this value: leave it out or send {values}.{advice}")
