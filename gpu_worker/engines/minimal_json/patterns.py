"""Regular expressions of JSON schemas: a short text that matches, and matching in bounded time. Pure.

A client writes the pattern, so Python's `re` is not used: its backtracking can take exponential time. Here a match is a
set of places in the text, and each node of the pattern maps places to places: its time is at most the product of the
text's length, the pattern's length and its repetitions.

Supported: literals, classes, groups, alternatives, repetitions, `^` and `$`. Look-around, back references, word
boundaries and flags are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_LIKED = "a0A- _"
"""Characters to prefer in an example, in this order."""

_Places = frozenset[int]
_Spend = Callable[[int], None]
"""Counts work; raises if there is too much."""
_Ranges = tuple[tuple[int, int], ...]


class Node(Protocol):
    def ends(self, text: str, starts: _Places, spend: _Spend) -> _Places:
        """Return the places where a match ends that begins at one of `starts`."""
        ...

    def example(self, extra: int) -> str:
        """Return a short text that matches, longer than the shortest by about `extra` characters if possible."""
        ...


@dataclass(frozen=True)
class Chars:
    """One character of `ranges` of code points, both ends included."""

    ranges: _Ranges

    def ends(self, text: str, starts: _Places, spend: _Spend) -> _Places:
        spend(len(starts))
        return frozenset(at + 1 for at in starts if at < len(text) and self.has(ord(text[at])))

    def example(self, extra: int) -> str:
        return next((char for char in _LIKED if self.has(ord(char))), chr(self.ranges[0][0]))

    def has(self, code: int) -> bool:
        return any(low <= code <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Anchor:
    end: bool

    def ends(self, text: str, starts: _Places, spend: _Spend) -> _Places:
        return starts & {len(text) if self.end else 0}

    def example(self, extra: int) -> str:
        return ""


@dataclass(frozen=True)
class Concatenation:
    parts: tuple[Node, ...]

    def ends(self, text: str, starts: _Places, spend: _Spend) -> _Places:
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

    def ends(self, text: str, starts: _Places, spend: _Spend) -> _Places:
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

    def ends(self, text: str, starts: _Places, spend: _Spend) -> _Places:
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

    def matches(self, text: str, spend: _Spend) -> bool:
        return bool(self.node.ends(text, frozenset(range(len(text) + 1)), spend))

    def example(self, length_min: int) -> str:
        """Return a short text that should match and has `length_min` characters if possible. Check it."""
        shortest = self.node.example(0)
        missing = length_min - len(shortest)
        return self.node.example(missing) if missing > 0 else shortest


def _shortest_length(node: Node) -> int:
    """Return the length of the shortest match, without building it."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Concatenation):
        return sum(_shortest_length(part) for part in node.parts)
    if isinstance(node, Alternatives):
        return max(_shortest_length(option) for option in node.options)
    return max(1, _shortest_length(node.body)) * node.least if isinstance(node, Repeat) else 0


_REPEATS_MAX = 1_000
_PATTERN_CHARS_MAX = 1_000
_GROUPS_DEEP_MAX = 30
_TOP = 0x10FFFF


def _complement(ranges: _Ranges) -> _Ranges:
    found, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    return tuple([*found, (begin, _TOP)] if begin <= _TOP else found)


_DIGITS: _Ranges = ((48, 57),)
_WORD: _Ranges = ((97, 122), (65, 90), *_DIGITS, (95, 95))
_SPACE: _Ranges = ((32, 32), (9, 13))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE} | {
    name: _complement(ranges) for name, ranges in (("D", _DIGITS), ("W", _WORD), ("S", _SPACE))
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_ANY = _complement(((10, 10), (13, 13)))


def parse_pattern(text: str) -> PatternPart:
    """Raises ValueError for what is not supported."""
    if len(text) > _PATTERN_CHARS_MAX:
        raise ValueError(f"it has more than {_PATTERN_CHARS_MAX} characters")
    parser = _Parser(text)
    node = parser.either(0)
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError("it has half of a surrogate pair")
    if parser.at < len(text):
        raise ValueError(f"an unexpected {text[parser.at]!r}")
    if _shortest_length(node) > _REPEATS_MAX:
        raise ValueError(f"its shortest match has more than {_REPEATS_MAX} characters")
    return PatternPart(node)


@dataclass
class _Parser:
    text: str
    at: int = 0

    def either(self, depth: int) -> Node:
        if depth > _GROUPS_DEEP_MAX:
            raise ValueError("its groups are nested too deeply")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repetition(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _atom(self, depth: int) -> Node:
        char = self._next()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return Chars(self._class())
        if char in "^$":
            return Anchor(char == "$")
        if char in "*+?":
            raise ValueError(f"a {char!r} with nothing to repeat")
        if char == ".":
            return Chars(_ANY)
        return Chars(self._escape() if char == "\\" else _one(char))

    def _group(self, depth: int) -> Node:
        if self._take("?"):
            self._take("P")
            if self._take("<"):
                name, close, rest = self.text[self.at :].partition(">")
                if not close or not name.isidentifier():
                    raise ValueError("look-around is not supported")
                self.at = len(self.text) - len(rest)
            elif not self._take(":"):
                raise ValueError("look-around and flags are not supported")
        inner = self.either(depth + 1)
        if not self._take(")"):
            raise ValueError("a group without its end")
        return inner

    def _repetition(self, node: Node) -> Node:
        counts = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if counts is not None:
            self.at += 1
        elif self._peek() == "{" and (counts := self._braces()) is None:
            return node
        if counts is None:
            return node
        self._take("?")
        if self._peek() and self._peek() in "*+?":
            raise ValueError("a repetition of a repetition")
        least, most = counts
        if least > _REPEATS_MAX or (most is not None and most < least):
            raise ValueError(f"repetitions must be ordered, and at most {_REPEATS_MAX}")
        return Repeat(node, least, most)

    def _braces(self) -> tuple[int, int | None] | None:
        inside, close, _ = self.text[self.at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not close or not (least.isascii() and least.isdigit()) or (most and not (most.isascii() and most.isdigit())):
            raise ValueError("a brace that is no repetition")
        self.at += len(inside) + 2
        return int(least[:9]), int(most[:9]) if most else None if comma else int(least[:9])

    def _class(self) -> _Ranges:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._class_item()
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._class_item()
                if len(low) > 1 or len(high) > 1 or low[0][0] > high[0][0]:
                    raise ValueError("a range without order")
                low = ((low[0][0], high[0][0]),)
            ranges.extend(low)
        found = _complement(tuple(ranges)) if negated else tuple(ranges)
        if not found:
            raise ValueError("a class without a character")
        return found

    def _class_item(self) -> _Ranges:
        char = self._next()
        return self._escape() if char == "\\" else _one(char)

    def _escape(self) -> _Ranges:
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "xu":
            digits = self.text[self.at : self.at + (2 if char == "x" else 4)]
            self.at += len(digits)
            return _one(chr(int(digits, 16)))
        if char.isalnum() and char not in _ESCAPES:
            raise ValueError(f"the escape \\{char}")
        return _one(_ESCAPES.get(char, char))

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise ValueError("an unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self.at += 1
        return True


def _one(char: str) -> _Ranges:
    return ((ord(char), ord(char)),)
