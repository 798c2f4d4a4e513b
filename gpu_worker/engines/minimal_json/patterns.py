"""Regular expressions of JSON schemas: a short text that matches, and matching in bounded time. Pure.

A client writes the pattern, so Python's `re` is not used: its backtracking can take exponential time. Here a match is a
set of places in the text, and each node of the pattern maps places to places: its time is at most the product of the
text's length, the pattern's length and its repetitions.

pattern_parser.py reads a pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_LIKED = "a0A- _"
"""Characters to prefer in an example, in this order."""

Places = frozenset[int]
Spend = Callable[[int], None]
"""Counts work; raises if there is too much."""
Ranges = tuple[tuple[int, int], ...]


class Node(Protocol):
    def ends(self, text: str, starts: Places, spend: Spend) -> Places:
        """Return the places where a match ends that begins at one of `starts`."""
        ...

    def example(self, extra: int) -> str:
        """Return a short text that matches, longer than the shortest by about `extra` characters if possible."""
        ...


@dataclass(frozen=True)
class Chars:
    """One character of `ranges` of code points, both ends included."""

    ranges: Ranges

    def ends(self, text: str, starts: Places, spend: Spend) -> Places:
        spend(len(starts))
        return frozenset(at + 1 for at in starts if at < len(text) and self.has(ord(text[at])))

    def example(self, extra: int) -> str:
        return next((char for char in _LIKED if self.has(ord(char))), chr(self.ranges[0][0]))

    def has(self, code: int) -> bool:
        return any(low <= code <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Anchor:
    end: bool

    def ends(self, text: str, starts: Places, spend: Spend) -> Places:
        return starts & {len(text) if self.end else 0}

    def example(self, extra: int) -> str:
        return ""


@dataclass(frozen=True)
class Concatenation:
    parts: tuple[Node, ...]

    def ends(self, text: str, starts: Places, spend: Spend) -> Places:
        for part in self.parts:
            starts = part.ends(text, starts, spend)
            if not starts:
                break
        return starts

    def example(self, extra: int) -> str:
        texts = []
        for part in self.parts:
            texts.append(part.example(extra))
            extra = max(0, extra - (len(texts[-1]) - len(part.example(0)))) if extra else 0
        return "".join(texts)


@dataclass(frozen=True)
class Alternatives:
    options: tuple[Node, ...]

    def ends(self, text: str, starts: Places, spend: Spend) -> Places:
        return frozenset().union(*(option.ends(text, starts, spend) for option in self.options))

    def example(self, extra: int) -> str:
        """Return the shortest example that is long enough, else the longest."""
        wanted = min(len(option.example(0)) for option in self.options) + extra
        return min((option.example(extra) for option in self.options), key=lambda text: (abs(wanted - len(text)), text))


@dataclass(frozen=True)
class Repeat:
    body: Node
    least: int
    most: int | None

    def ends(self, text: str, starts: Places, spend: Spend) -> Places:
        spend(1)
        for _ in range(self.least):
            starts = self.body.ends(text, starts, spend)
        reached, count = starts, self.least
        while starts and (self.most is None or count < self.most):
            starts = self.body.ends(text, starts, spend) - reached
            reached, count = reached | starts, count + 1
        return reached

    def example(self, extra: int) -> str:
        unit = self.body.example(0)
        count = self.least
        if extra and (self.most is None or self.most > count):
            unit = unit or self.body.example(1)
            wanted = count + -(-extra // max(1, len(unit)))
            count = wanted if self.most is None else min(wanted, self.most)
        return unit * count


@dataclass(frozen=True)
class PatternPart:
    node: Node

    def matches(self, text: str, spend: Spend) -> bool:
        return bool(self.node.ends(text, frozenset(range(len(text) + 1)), spend))

    def example(self, length_min: int) -> str:
        """Return a short text that should match and has `length_min` characters if possible. Check it."""
        shortest = self.node.example(0)
        missing = length_min - len(shortest)
        return self.node.example(missing) if missing > 0 else shortest


def shortest_length(node: Node) -> int:
    """Return the length of the shortest match, without building it."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Concatenation):
        return sum(shortest_length(part) for part in node.parts)
    if isinstance(node, Alternatives):
        return max(shortest_length(option) for option in node.options)
    return max(1, shortest_length(node.body)) * node.least if isinstance(node, Repeat) else 0
