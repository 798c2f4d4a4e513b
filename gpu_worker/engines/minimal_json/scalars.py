"""Candidates for the texts and numbers of an instance, the small ones first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any

from gpu_worker.engines.minimal_json.document import SchemaDocument, Unsatisfiable
from gpu_worker.engines.minimal_json.keywords import fraction_of, number_of

TRIES = 64
"""Candidates of one kind at most: for items that must differ, and for what `not` excludes."""
TEXT_CHARS_MAX = 4_096
FORMATS = {
    "date-time": "1970-01-01T00:00:00Z",
    "date": "1970-01-01",
    "time": "00:00:00Z",
    "duration": "P0D",
    "email": "a@example.com",
    "idn-email": "a@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com",
    "iri": "https://example.com",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "json-pointer": "",
    "regex": "",
}
"""A value of each format. A text of another format is not restricted."""


def strings(document: SchemaDocument, parts: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield texts. Raises Unsatisfiable for one that would be too long, and for an unsupported pattern."""
    least = ceil(max((number_of(part, "minLength") or 0 for part in parts), default=0))
    if least > TEXT_CHARS_MAX:
        raise Unsatisfiable(f"a text needs more than {TEXT_CHARS_MAX} characters")
    document.work.spend(1 + least // 8)
    patterns = [part["pattern"] for part in parts if "pattern" in part]
    formats = [FORMATS[name] for part in parts if (name := str(part.get("format"))) in FORMATS]
    if patterns:
        yield from _matching(document, patterns, least)
    elif formats:
        yield formats[0]
    else:
        yield from ("a" * (least + more) for more in range(TRIES))


def _matching(document: SchemaDocument, patterns: list[Any], least: int) -> Iterator[str]:
    for pattern in patterns:
        for more in range(8):
            text = document.pattern(pattern).example(least + more)
            yield text
            yield text.ljust(least + more, "a")  # a pattern without `$` allows any text behind it


def numbers(parts: list[Mapping[str, Any]], *, whole: bool) -> Iterator[int | float]:
    """Yield numbers within the bounds: from 0, or from the bound that is nearest to 0, away from the other bound."""
    low = max(_bounds(parts, "minimum", "exclusiveMinimum"), default=None)
    high = min(_bounds(parts, "maximum", "exclusiveMaximum"), default=None)
    steps = [fraction_of(each) for part in parts if (each := number_of(part, "multipleOf"))]
    if whole:
        steps.append(Fraction(1))
    step = _common_multiple(steps) if steps else Fraction(1)
    begin, direction = 0, -1 if low is None and high is not None else 1
    if low is not None and low > 0:
        begin = ceil(low / step)
    elif high is not None and high < 0:
        begin, direction = floor(high / step), -1
    for count in range(TRIES):
        yield _number((begin + direction * count) * step)
    if not steps and low is not None:
        yield _number(low)
        yield _number((low + (low + 1 if high is None else high)) / 2)
    if not steps and high is not None:
        yield _number(high)


def _bounds(parts: list[Mapping[str, Any]], *names: str) -> list[Fraction]:
    found = [number_of(part, name) for part in parts for name in names]
    return [fraction_of(bound) for bound in found if bound is not None]


def _common_multiple(steps: list[Fraction]) -> Fraction:
    """Return the smallest number that is a multiple of all `steps`."""
    below = lcm(*(step.denominator for step in steps))
    return Fraction(lcm(*(step.numerator * (below // step.denominator) for step in steps)), below)


def _number(exact: Fraction) -> int | float:
    return exact.numerator if exact.denominator == 1 else float(exact)
