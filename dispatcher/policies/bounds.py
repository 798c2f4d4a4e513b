"""Bounds of a field, written beside its type, and the base of settings that have such bounds. Pure.

`Annotated[int, Bounds(1, 100)]` checks nothing by itself. pydantic checks it where a value comes from outside
(dispatcher/settings/strict.py, dispatcher/workers/wire.py), and `check_bounds` where settings are made in code.
pydantic finds the methods below by their name, so this module does not import pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

_Schema = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lowest and highest value of a number, or shortest and longest length of a text or a tuple, both included.

    `above`, `below`: bounds of a number that are not included. `is_finite`: False for a number that may be infinite
    in code; from outside no number may.
    """

    low: float = -inf
    high: float = inf
    above: float | None = None
    below: float | None = None
    is_finite: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: _Schema) -> dict[str, Any]:
        schema = handler(source)
        is_number = schema["type"] in ("int", "float")
        low, high = ("ge", "le") if is_number else ("min_length", "max_length")
        bounds = {low: self.low, high: self.high, "gt": self.above, "lt": self.below}
        return {**schema, **{name: bound for name, bound in bounds.items() if bound is not None and isfinite(bound)}}

    def problem(self, value: float) -> str | None:
        """Return what is wrong with a number, to follow its name in a sentence; None if it is right."""
        is_above = self.low <= value and (self.above is None or self.above < value)
        is_below = value <= self.high and (self.below is None or value < self.below)
        if is_above and is_below and (isfinite(value) or not self.is_finite):
            return None
        named = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        words = [f"{word} {bound:g}" for word, bound in named.items() if bound is not None and isfinite(bound)]
        finite = "" if isfinite(value) else "finite and "
        return f"must be {finite}{' and '.join(words)}, not {value!r}"


NotNegative = Annotated[float, Bounds(0)]
Part = Annotated[float, Bounds(0, 1)]
"""The part of a whole."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that the whole text matches, checked where Bounds is. It has no look-around.

    `example` stands in the error in place of the expression.
    """

    expression: str
    example: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: _Schema) -> dict[str, Any]:
        schema = {**handler(source), "pattern": self.expression}
        if not self.example:
            return schema
        return {
            "type": "custom-error", "schema": schema, "custom_error_type": "pattern",
            "custom_error_message": f"should look like {self.example}",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OneOf:
    """The allowed values of a text, or of an enum that is written as text."""

    values: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: _Schema) -> dict[str, Any]:
        allowed = {"type": "literal", "expected": [str(value) for value in self.values]}
        is_enum = isinstance(source, type) and issubclass(source, Enum)
        make = {"type": "no-info", "function": source}
        return {"type": "function-after", "function": make, "schema": allowed} if is_enum else allowed


@dataclass(frozen=True, slots=True)
class AnySequence:
    """A list is taken for a set or a tuple."""

    def __get_pydantic_core_schema__(self, source: Any, handler: _Schema) -> dict[str, Any]:
        return {**handler(source), "strict": False}


class BoundedSettings:
    """The base of dataclasses of settings. From outside they are read strictly (dispatcher/settings/strict.py).

    Raises ValueError for a number outside its bounds.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: _Schema) -> dict[str, Any]:
        """Return the schema of a mapping with strict fields. (A strict schema would take only an instance.)"""
        return {**handler(source), "strict": False}

    def __post_init__(self) -> None:
        check_bounds(self)


def check_bounds(settings: BoundedSettings) -> None:
    """Raise ValueError, with a sentence, for the first number that is outside its bounds."""
    kind: Any = type(settings)  # mypy takes no class for hashable
    for name, hint in _hints(kind).items():
        for problem in _problems(hint, getattr(settings, name)):
            raise ValueError(f"{name} {problem}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if not name.startswith("_")}


def _problems(hint: Any, value: Any) -> Iterator[str]:
    """Yield what is wrong with a value, or with the values of a mapping. None has no bounds."""
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        bounds = (each for each in arguments[1:] if isinstance(each, Bounds))
        yield from filter(None, (each.problem(value) for each in bounds))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (f"of {key} {problem}" for problem in _problems(arguments[1], each))
    elif value is not None:
        for each in arguments:
            yield from _problems(each, value)
