"""The shape of a list of token ids. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dispatcher.fields.limits import TOKEN_ID_MAX
from dispatcher.fields.reading import Reading, invalid
from dispatcher.fields.shapes.scalars import Scalar


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
