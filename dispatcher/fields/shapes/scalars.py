"""Shapes of single values: true or false, numbers, texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dispatcher.fields.kinds import Need
from dispatcher.fields.reading import Reading, invalid


class Scalar:
    """The base of the shapes that need no capability of their own."""

    __slots__ = ()

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
