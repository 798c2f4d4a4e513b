"""The types of the table of fields, and how an object is read by its table: refused, dropped, checked and kept. Pure.

A Reading is the state of one parse. An error names the field and never repeats a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dispatcher.model.errors import InvalidRequest

Need = tuple[str, tuple[str, ...]]
"""The place of a field in the body, and the capabilities of which the model's workers need one."""


class Kind(StrEnum):
    """What the gate does with a field. Null counts as "not sent" for every known field."""

    OURS = "ours"
    """headgate sets it from the tenant's configuration. Refused by name if a client sends it."""
    READ = "read"
    """The gate uses it. The engine gets it in the work order, not in the body."""
    LABEL = "label"
    """Accepted at any value and dropped: it does not change the answer."""
    PASSED = "passed"
    """Checked for its type and range, and passed to the engine unchanged."""
    BOUNDED = "bounded"
    """Passed too. Its size decides what it costs, so the gate limits it."""
    REFUSED = "refused"
    """Refused by name, except at its neutral values."""


class Shape(Protocol):
    """The accepted values of a field."""

    @property
    def is_scalar(self) -> bool:
        """Whether no value needs a capability of its own."""

    def text(self) -> str:
        """Describe the accepted values for the documentation page and for errors."""

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        """Return the value that is passed on. `at` is its place in the body. Raises InvalidRequest."""

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        """Yield the capabilities that a value needs which `read` has returned."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request's body or of an object in it."""

    kind: Kind
    shape: Shape
    note: str = ""
    """The field's note on the page (docs/fields.md). If the kind is REFUSED, the error contains the note too. The note
    is then a sentence that says what to do."""
    neutral: tuple[Any, ...] = ()
    """Beside null, the values at which the answer is the same as without the field. The gate drops such a value."""
    usual: tuple[Any, ...] = ()
    """OpenAI's default, where a model's own configuration may have another one (vLLM reads generation_config.json). It
    needs no capability: it is passed on if the model's workers have the capability, and dropped otherwise."""
    capability: tuple[str, ...] = ()
    """The workers of the model need one of these capabilities. Empty: each worker accepts the field."""
    required: bool = False

    def is_neutral(self, value: Any) -> bool:
        return value is None or (bool(self.neutral) and _is_among(value, self.neutral))

    def is_usual(self, value: Any) -> bool:
        return bool(self.usual) and _is_among(value, self.usual)


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of one object."""

    title: str
    fields: Mapping[str, Field]
    elsewhere: Mapping[str, Field] = field(default_factory=dict)
    """Fields of another endpoint. They are accepted at neutral values, because some clients send the same settings to
    every endpoint."""

    required: tuple[str, ...] = field(init=False)
    """The names of the fields that each object has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", tuple(name for name, each in self.fields.items() if each.required))

    def names(self, *kinds: Kind) -> frozenset[str]:
        return frozenset(name for name, each in self.fields.items() if each.kind in kinds)


def merged(*parts: Mapping[str, Field]) -> dict[str, Field]:
    """Return all parts as one. Raises ValueError if two parts have the same field."""
    names = [name for part in parts for name in part]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"fields in two parts of a table: {', '.join(sorted(twice))}")
    return {name: each for part in parts for name, each in part.items()}


def _is_among(value: Any, some: Iterable[Any]) -> bool:
    """Return whether `some` has an equal value. True is not equal to 1 here."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in some)


_NAME_CHARS_MAX = 100
DROPPED_MAX = 32
"""The most unknown fields that one request may have in a pool that drops them."""


@dataclass(slots=True)
class Reading:
    """What one parse has found so far, across all parts of the body."""

    drop_unknown: bool = False
    """Drop unknown fields instead of refusing them."""
    dropped: list[str] = field(default_factory=list)
    """The places of the dropped unknown fields."""
    schema_nodes: int = 0
    pattern_chars: int = 0
    images: int = 0
    pixels: int = 0

    def unknown(self, at: str) -> None:
        """Note an unknown field, or refuse it. Raises InvalidRequest."""
        name = at[:_NAME_CHARS_MAX]
        if not self.drop_unknown:
            raise InvalidRequest(f"Unknown parameter: `{name}`.", name, "unknown_parameter")
        if len(self.dropped) >= DROPPED_MAX:
            message = f"More than {DROPPED_MAX} unknown parameters; the first that is too many is `{name}`."
            raise InvalidRequest(message, name, "unknown_parameter")
        self.dropped.append(name)


def invalid(at: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid `{at}`: {reason}.", at, "invalid_value")


def missing(at: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: `{at}`.", at, "missing_required_parameter")


def unsupported(at: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, at, "unsupported_parameter")


def read_fields(
    given: Mapping[str, Any], table: FieldTable, prefix: str, reading: Reading, tag: str | None = None
) -> dict[str, Any]:
    """Return the fields that the gate reads or passes on, checked. `prefix` is the object's place, such as `tools.0.`.

    `tag`: a field that is left out here. Raises InvalidRequest.
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name == tag:
            continue
        field = table.fields.get(name)
        if field is None:
            _read_elsewhere(name, value, table, prefix, reading)
        elif _is_kept(field, value, prefix + name):
            kept[name] = field.shape.read(value, prefix + name, reading)
    for name in table.required:
        if name not in kept:
            raise missing(prefix + name)
    return kept


def needs_of(kept: Mapping[str, Any], table: FieldTable, prefix: str = "", tag: str | None = None) -> Iterator[Need]:
    """Yield what the fields need of the model's workers. `kept` is what `read_fields` has returned."""
    for name, value in kept.items():
        if name == tag:
            continue
        field = table.fields[name]
        if (field.shape.is_scalar and not field.capability) or field.is_usual(value):
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
