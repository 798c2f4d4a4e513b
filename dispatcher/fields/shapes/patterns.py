"""The bounds of a regular expression or grammar that an engine compiles. Pure.

A short expression can be huge after its repetitions are written out: `((a{99}){99}){99}` has a million characters. So
the size is computed as if they were.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dispatcher.fields.limits import PATTERN_CHARS_MAX, PATTERN_SIZE_MAX
from dispatcher.fields.reading import Reading, invalid
from dispatcher.fields.shapes.scalars import Scalar

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
        if not is_bounded(value):
            raise invalid(at, f"a {self.text()} is required")
        return value


def is_bounded(pattern: str) -> bool:
    return 1 <= len(pattern) <= PATTERN_CHARS_MAX and size_of(pattern) <= PATTERN_SIZE_MAX


def size_of(pattern: str) -> int:
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
