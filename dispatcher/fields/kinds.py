"""The types of the table of fields: a field's kind, the field, and a table of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dispatcher.fields.reading import Reading

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
        return value is None or _is_among(value, self.neutral)

    def is_usual(self, value: Any) -> bool:
        return _is_among(value, self.usual)


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of one object."""

    title: str
    fields: Mapping[str, Field]
    elsewhere: Mapping[str, Field] = field(default_factory=dict)
    """Fields of another endpoint. They are accepted at neutral values, because some clients send the same settings to
    every endpoint."""

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
