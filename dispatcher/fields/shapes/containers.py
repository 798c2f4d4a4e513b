"""Shapes of lists and objects. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.fields.kinds import FieldTable, Need, Shape
from dispatcher.fields.objects import needs_of, read_fields
from dispatcher.fields.reading import Reading, invalid, unsupported
from dispatcher.fields.shapes.scalars import Scalar
from dispatcher.model.errors import InvalidRequest

_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Items:
    """A list of `fewest` to `most` values of one shape."""

    of: Shape
    most: int
    fewest: int = 0
    advice: str = ""
    """What to do with a list of another length, for the error."""

    def text(self) -> str:
        return f"list of {self._length()}: {self.of.text()}"

    def read(self, value: Any, at: str, reading: Reading) -> list[Any]:
        if not isinstance(value, list):
            raise invalid(at, "a list is required")
        if not self.fewest <= len(value) <= self.most:
            advice = f"; {self.advice}" if self.advice else ""
            raise invalid(at, f"a list of {self._length()} is required{advice}")
        return [self.of.read(each, f"{at}.{place}", reading) for place, each in enumerate(value)]

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        for place, each in enumerate(value):
            yield from self.of.needs(each, f"{at}.{place}")

    def _length(self) -> str:
        if self.fewest == self.most:
            return "one value" if self.most == 1 else f"{self.most:,} values"
        return f"{self.fewest:,} to {self.most:,}" if self.fewest else f"at most {self.most:,}"


@dataclass(frozen=True, slots=True)
class Entries(Scalar):
    """An object with any keys of at most `key_chars` characters, and values of one shape.

    An error names the object only, because its keys are the client's data.
    """

    of: Shape
    most: int
    key: Shape

    def text(self) -> str:
        return f"object of at most {self.most:,} entries: {self.of.text()}"

    def read(self, value: Any, at: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise invalid(at, "an object is required")
        if len(value) > self.most:
            raise invalid(at, f"an object of at most {self.most:,} entries is required")
        return {self._key(key, at, reading): self.of.read(each, at, reading) for key, each in value.items()}

    def _key(self, key: str, at: str, reading: Reading) -> Any:
        try:
            return self.key.read(key, at, reading)
        except InvalidRequest:
            raise invalid(at, f"each key must be a {self.key.text()}") from None


@dataclass(frozen=True, slots=True)
class Record:
    """An object with the fields of a table."""

    table: FieldTable

    def text(self) -> str:
        return f"object: {self.table.title}"

    def read(self, value: Any, at: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise invalid(at, "an object is required")
        return read_fields(value, self.table, f"{at}.", reading)

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        return needs_of(value, self.table, f"{at}.")


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a tagged object."""

    table: FieldTable
    capability: tuple[str, ...] = ()
    refused: str = ""
    """If it is not empty, the form is refused; the error contains this sentence."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the object gets if it does not have them."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object whose field `tag` names its form."""

    tag: str
    forms: Mapping[str, Form]
    usual: str = ""
    """The form of an object without the tag. Empty: the tag is required."""

    def text(self) -> str:
        accepted = [name for name, form in self.forms.items() if not form.refused]
        return f"object with `{self.tag}`: " + " or ".join(f'"{name}"' for name in accepted)

    def read(self, value: Any, at: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise invalid(at, "an object is required")
        name = value.get(self.tag) or self.usual
        form = self.forms.get(name) if isinstance(name, str) else None
        if form is None:
            words = " or ".join(f'"{each}"' for each, other in self.forms.items() if not other.refused)
            raise invalid(f"{at}.{self.tag}", f"{words} is required")
        if form.refused:
            raise unsupported(
                f"{at}.{self.tag}", f"`{at}` with the {self.tag} `{name}` is not supported. {form.refused}"
            )
        others = {key: each for key, each in value.items() if key != self.tag}
        return {self.tag: name, **form.defaults, **read_fields(others, form.table, f"{at}.", reading)}

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        form = self.forms[value[self.tag]]
        if form.capability:
            yield at, form.capability
        yield from needs_of({key: each for key, each in value.items() if key != self.tag}, form.table, f"{at}.")


@dataclass(frozen=True, slots=True)
class Either:
    """Values of different JSON types, each with a shape: a text, a list, an object, a number, a boolean."""

    shapes: Mapping[type, Shape]

    def text(self) -> str:
        return "; or ".join(shape.text() for shape in self.shapes.values())

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        shape = self.shapes.get(type(value))
        if shape is None:
            names = " or ".join(_NAMES[each] for each in self.shapes)
            raise invalid(at, f"{names} is required")
        return shape.read(value, at, reading)

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        return self.shapes[type(value)].needs(value, at)


@dataclass(frozen=True, slots=True)
class ByFirst:
    """A list with a shape, and a capability, for the JSON type of its first value."""

    shapes: Mapping[type, tuple[Shape, tuple[str, ...]]]

    def text(self) -> str:
        return "; or ".join(shape.text() for shape, _ in self.shapes.values())

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        if not isinstance(value, list) or not value or type(value[0]) not in self.shapes:
            raise invalid(at, f"one of these is required: {self.text()}")
        return self.shapes[type(value[0])][0].read(value, at, reading)

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        _, capability = self.shapes[type(value[0])]
        if capability:
            yield at, capability
