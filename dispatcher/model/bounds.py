"""Bounds of a field, written beside its type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lowest and highest value of a number, or shortest and longest length of a text or a tuple, both included.

    `Annotated[int, Bounds(1, 100)]` checks nothing by itself. pydantic checks it when a message is decoded
    (dispatcher/worker_wire.py). pydantic finds the method below by its name, so this module does not import pydantic.
    """

    low: float
    high: float

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        schema = handler(source)
        is_number = schema["type"] in ("int", "float")
        low, high = ("ge", "le") if is_number else ("min_length", "max_length")
        return {**schema, low: self.low, high: self.high}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that the whole text matches, checked where Bounds is. It has no look-around."""

    expression: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {**handler(source), "pattern": self.expression}
