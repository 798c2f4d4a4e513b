"""Shapes of values: true or false, numbers, texts, token ids, lists and objects. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from dispatcher.fields.kinds import (
    Field,
    FieldTable,
    Kind,
    Need,
    Reading,
    Shape,
    invalid,
    needs_of,
    read_fields,
    unsupported,
)
from dispatcher.fields.limits import TOKEN_ID_MAX
from dispatcher.model.errors import InvalidRequest


class Compound:
    """The base of the other shapes."""

    __slots__ = ()
    is_scalar = False


class Scalar:
    """The base of the shapes that need no capability of their own."""

    __slots__ = ()
    is_scalar = True

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Flag(Scalar):
    def text(self) -> str:
        return "true or false"

    def read(self, value: Any, at: str, reading: Reading) -> bool:
        if not isinstance(value, bool):
            raise invalid(at, "true or false is required")
        return value


@dataclass(frozen=True, slots=True)
class Whole(Scalar):
    """A whole number from `low` to `high`. As in JSON Schema, 7.0 is one; the engine gets 7."""

    low: int
    high: int | None = None

    def text(self) -> str:
        limits = f"of at least {self.low:,}" if self.high is None else f"from {self.low:,} to {self.high:,}"
        return f"whole number {limits}"

    def read(self, value: Any, at: str, reading: Reading) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(at, "a whole number is required")
        if value < self.low or (self.high is not None and value > self.high):
            raise invalid(at, f"a {self.text()} is required")
        return value


@dataclass(frozen=True, slots=True)
class Number(Scalar):
    """A number from `low` to `high`. It is passed on as a float, so that 1 and 1.0 are the same request."""

    low: float
    high: float
    above: bool = False
    """The number must be above `low`."""

    def text(self) -> str:
        return (
            f"number {'above' if self.above else 'from'} {self.low:g} {'and up ' if self.above else ''}to {self.high:g}"
        )

    def read(self, value: Any, at: str, reading: Reading) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(at, "a number is required")
        if not self.low <= value <= self.high or (self.above and value == self.low):
            raise invalid(at, f"a {self.text()} is required")
        return float(value)


@dataclass(frozen=True, slots=True)
class Text(Scalar):
    """A text of `shortest` to `longest` characters. `pattern` must match all of it; `means` describes the pattern."""

    longest: int
    shortest: int = 0
    pattern: str = ""
    means: str = ""

    def text(self) -> str:
        sizes = (
            f"at most {self.longest:,} characters"
            if not self.shortest
            else (f"{self.shortest:,} to {self.longest:,} characters")
        )
        return f"text of {sizes}" + (f" ({self.means})" if self.means else "")

    def read(self, value: Any, at: str, reading: Reading) -> str:
        if not isinstance(value, str):
            raise invalid(at, "a text is required")
        is_sized = self.shortest <= len(value) <= self.longest
        if not is_sized or (self.pattern and not re.fullmatch(self.pattern, value)):
            raise invalid(at, f"a {self.text()} is required")
        return value


@dataclass(frozen=True, slots=True)
class Word(Scalar):
    """One of several texts."""

    words: tuple[str, ...]

    def text(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)

    def read(self, value: Any, at: str, reading: Reading) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise invalid(at, f"{self.text()} is required")
        return value


@dataclass(frozen=True, slots=True)
class Anything(Scalar):
    """Any JSON value. For fields that are refused, or dropped unread."""

    def text(self) -> str:
        return "any value"

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class TokenIds(Scalar):
    """A list of at most `most` token ids. A prompt has many of them, so an error names only the list."""

    most: int
    fewest: int = 0

    def text(self) -> str:
        return f"list of {self.fewest} to {self.most:,} token ids"

    def read(self, value: Any, at: str, reading: Reading) -> list[int]:
        if not isinstance(value, list) or not self.fewest <= len(value) <= self.most:
            raise invalid(at, f"a {self.text()} is required")
        if not all(type(each) is int and 0 <= each <= TOKEN_ID_MAX for each in value):
            raise invalid(at, f"a token id is a whole number from 0 to {TOKEN_ID_MAX:,}")
        return value


_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Items(Compound):
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
class Record(Compound):
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
    texts: Mapping[str, int] = field(init=False)
    """The fields that take any text, with its most characters. Such a text is passed on as it is and needs nothing."""
    _required: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        longest = {name: _longest_text(each) for name, each in self.table.fields.items()}
        object.__setattr__(self, "_required", frozenset(self.table.required))
        object.__setattr__(self, "texts", {name: chars for name, chars in longest.items() if chars is not None})

    def is_plain(self, value: Mapping[str, Any], tag: str) -> bool:
        """Return whether the object has nothing but such texts beside its tag, and all fields that it must have.

        Nearly all messages of a long chat are such objects. Field by field they would take twice as long.
        """
        texts = self.texts
        for name, each in value.items():
            if name != tag and (type(each) is not str or len(each) > texts.get(name, -1)):
                return False
        return value.keys() >= self._required


def _longest_text(field: Field) -> int | None:
    """Return the most characters of a text, if the field takes any text; None if it checks more than its length."""
    shape = field.shape.shapes.get(str) if isinstance(field.shape, Either) else field.shape
    is_checked = field.capability or any(isinstance(each, str) for each in (*field.neutral, *field.usual))
    if is_checked or field.kind not in (Kind.PASSED, Kind.BOUNDED) or not isinstance(shape, Text):
        return None
    return None if shape.shortest or shape.pattern else shape.longest


@dataclass(frozen=True, slots=True)
class Tagged(Compound):
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
        if form.is_plain(value, self.tag):
            return {self.tag: name, **form.defaults, **value, self.tag: name}
        return {self.tag: name, **form.defaults, **read_fields(value, form.table, f"{at}.", reading, self.tag)}

    def needs(self, value: Any, at: str) -> Iterator[Need]:
        form = self.forms[value[self.tag]]
        own = ((at, form.capability),) if form.capability else ()
        if form.is_plain(value, self.tag):
            return iter(own)
        return chain(own, needs_of(value, form.table, f"{at}.", self.tag))


@dataclass(frozen=True, slots=True)
class Either(Compound):
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
        shape = self.shapes[type(value)]
        return iter(()) if shape.is_scalar else shape.needs(value, at)


@dataclass(frozen=True, slots=True)
class ByFirst(Compound):
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
