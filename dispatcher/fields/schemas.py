"""The bounds of what an engine compiles: JSON schemas, regular expressions, grammars. Pure.

A small schema can be exponentially large: each definition refers twice to the next one. So the gate computes its size
with each `$ref` replaced by its target, without writing it out. A recursive reference adds nothing, because the grammar
refers back to a rule that it has.

A short expression can be huge after its repetitions are written out: `((a{99}){99}){99}` has a million characters. So
its size is computed as if they were.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from dispatcher.fields.kinds import Reading, invalid
from dispatcher.fields.limits import (
    ALL_NODES_MAX,
    ALL_PATTERN_CHARS_MAX,
    ALTERNATIVES_MAX,
    DEPTH_MAX,
    ENUM_MAX,
    INTEGER_MAX,
    NODES_MAX,
    PATTERN_CHARS_MAX,
    PATTERN_SIZE_MAX,
)
from dispatcher.fields.shapes import Scalar

_CHAIN_MAX = 100
_VISITED_MAX = 10 * NODES_MAX

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_KEYWORDS = frozenset({*_ALTERNATIVES, *_REFERENCES, "enum", "pattern", "patternProperties"})


@dataclass(frozen=True, slots=True)
class Schema(Scalar):
    """A JSON schema, or another JSON object that contains some."""

    def text(self) -> str:
        return (
            f"JSON schema: at most {DEPTH_MAX} levels, {NODES_MAX:,} values with each `$ref` replaced by its target, "
            f"{ALTERNATIVES_MAX} alternatives in one `anyOf`, `oneOf` or `allOf`, {ENUM_MAX:,} values in one `enum`; "
            f'`$ref` begins with "#"; all schemas of a request together: at most {ALL_NODES_MAX:,} values'
        )

    def read(self, value: Any, at: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise invalid(at, "a JSON schema (an object) is required")
        nodes, objects = _check_json(value, at)
        keyed = [each for each in objects if not _KEYWORDS.isdisjoint(each)]
        for each in keyed:
            _check_object(each, at, reading)
        if nodes <= NODES_MAX and any(map(_is_reference, keyed)):
            nodes = _Sizes(value).of(value)
        if nodes > NODES_MAX:
            raise invalid(at, f"a schema of at most {NODES_MAX:,} values, with each `$ref` replaced, is required")
        reading.schema_nodes += nodes
        if reading.schema_nodes > ALL_NODES_MAX:
            raise invalid(at, f"all schemas of a request together have at most {ALL_NODES_MAX:,} values")
        return value


@dataclass(frozen=True, slots=True)
class Free(Scalar):
    """Any JSON object of bounded size, for a chat template or an engine."""

    nodes: int
    refused_keys: tuple[str, ...] = ()

    def text(self) -> str:
        without = f", without {', '.join(f'`{key}`' for key in self.refused_keys)}" if self.refused_keys else ""
        return f"JSON object of at most {self.nodes:,} values and {DEPTH_MAX} levels{without}"

    def read(self, value: Any, at: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise invalid(at, "an object is required")
        if any(key in value for key in self.refused_keys) or _check_json(value, at)[0] > self.nodes:
            raise invalid(at, f"a {self.text()} is required")
        return value


def _check_json(value: Any, at: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of values in `value`, and the objects among them.

    Raises InvalidRequest if it is too deep, or has a number that is not finite or too large for the JSON parsers behind
    the gate.
    """
    level, nodes, objects = [value], 0, []
    for _ in range(DEPTH_MAX + 1):
        nodes += len(level)
        objects += [each for each in level if isinstance(each, dict)]
        if not all(_is_portable(each) for each in level):
            raise invalid(at, "a number in it is out of range")
        level = [child for each in level for child in _children(each)]
        if not level:
            return nodes, objects
    raise invalid(at, f"at most {DEPTH_MAX} levels are accepted")


def _is_portable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= INTEGER_MAX


def _children(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _check_object(schema: dict[str, Any], at: str, reading: Reading) -> None:
    for name in _ALTERNATIVES:
        if isinstance(some := schema.get(name), list) and len(some) > ALTERNATIVES_MAX:
            raise invalid(at, f"`{name}` has more than {ALTERNATIVES_MAX} alternatives")
    if isinstance(values := schema.get("enum"), list) and len(values) > ENUM_MAX:
        raise invalid(at, f"`enum` has more than {ENUM_MAX:,} values")
    for name in _REFERENCES:
        if isinstance(target := schema.get(name), str) and not target.startswith("#"):
            raise invalid(at, f"`{name}` must begin with `#`: a schema is not fetched from elsewhere")
    for pattern in _patterns(schema):
        reading.pattern_chars += len(pattern)
        if reading.pattern_chars > ALL_PATTERN_CHARS_MAX or not _is_bounded(pattern):
            raise invalid(at, "its regular expressions are too long, or too large with their repetitions written out")


def _patterns(schema: dict[str, Any]) -> Iterator[str]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    if isinstance(named := schema.get("patternProperties"), dict):
        yield from named


@dataclass(slots=True)
class _Sizes:
    """The size of a schema with each `$ref` replaced by its target. The size of each target is computed once.

    A size above NODES_MAX is not exact. The search stops there, and after _VISITED_MAX values or _CHAIN_MAX references
    in a chain, so that its time and its recursion are bounded.
    """

    root: dict[str, Any]
    known: dict[str, int] = field(default_factory=dict)
    chain: set[str] = field(default_factory=set)
    visited: int = 0

    def of(self, value: Any) -> int:
        nodes, level = 0, [value]
        references: Counter[str] = Counter()
        while level:
            nodes += len(level)
            references.update(each["$ref"] for each in level if _is_reference(each))
            level = [child for each in level for child in _children(each)]
        self.visited += nodes
        for reference, times in references.items():
            if nodes > NODES_MAX or self.visited > _VISITED_MAX:
                return NODES_MAX + 1
            nodes += times * self._target(reference)
        return nodes

    def _target(self, reference: str) -> int:
        """Return the size of a reference's target. A target that contains the reference (a recursion) adds nothing."""
        if reference in self.chain:
            return 0
        if len(self.chain) >= _CHAIN_MAX:
            return NODES_MAX + 1
        if reference not in self.known:
            self.chain.add(reference)
            self.known[reference] = self.of(_value_at(self.root, reference))
            self.chain.discard(reference)
        return self.known[reference]


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("$ref"), str)


def _value_at(root: Any, reference: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901), or None."""
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(root, list):
            root = root[int(name)] if name.isdecimal() and name.isascii() and int(name[:9]) < len(root) else None
        else:
            root = root.get(name) if isinstance(root, dict) else None
    return root


_COUNT = re.compile(r"\{([0-9]*)(?:,([0-9]*))?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PatternShape(Scalar):
    """A regular expression. The gate does not compile it; the engine reports a wrong one."""

    def text(self) -> str:
        return (
            f"regular expression of 1 to {PATTERN_CHARS_MAX:,} characters, and of at most {PATTERN_SIZE_MAX:,} after "
            "its repetitions are written out"
        )

    def read(self, value: object, at: str, reading: Reading) -> str:
        if not isinstance(value, str):
            raise invalid(at, "a text is required")
        if not _is_bounded(value):
            raise invalid(at, f"a {self.text()} is required")
        return value


def _is_bounded(pattern: str) -> bool:
    return 1 <= len(pattern) <= PATTERN_CHARS_MAX and pattern_size(pattern) <= PATTERN_SIZE_MAX


def pattern_size(pattern: str) -> int:
    """Return the number of characters and classes after all counted repetitions are written out.

    An unclosed group counts as closed at the end. Parentheses that are no group (lookahead, flags) count as groups.
    """
    groups, last = [0], 0
    place = 0
    while place < len(pattern):
        place, last = _step(pattern, place, groups, last)
    while len(groups) > 1:
        inner = groups.pop()
        groups[-1] += inner
    return groups[0]


def _step(pattern: str, place: int, groups: list[int], last: int) -> tuple[int, int]:
    """Read one atom or repetition. `groups` has the sizes of the open groups, `last` is the size of the last atom."""
    if pattern[place] == "(":
        groups.append(0)
        return place + 1, 0
    if pattern[place] == ")" and len(groups) > 1:
        inner = groups.pop()
        groups[-1] += inner
        return place + 1, inner
    if (count := _COUNT.match(pattern, place)) is not None:
        times = max((int(each[:9]) for each in count.groups() if each), default=1)
        groups[-1] += last * (max(times, 1) - 1)
        return count.end(), last * max(times, 1)
    groups[-1] += 1
    if pattern[place] == "[" and (found := _CLASS.match(pattern, place)) is not None:
        return found.end(), 1
    return place + (2 if pattern[place] == "\\" else 1), 1
