"""Finds a small valid instance of a JSON schema. Pure.

The instance is as flat as possible (the depth of nested values is raised step by step), and each part is the first that
is valid: no optional properties, the shortest arrays and texts, numbers near 0. All `$ref` and `allOf` that hold for a
value are gathered first; of `anyOf`, `oneOf` and `if` one alternative after another is tried. schema.py checks each
value, so what the search does not understand gives an error, never an invalid instance. The work is bounded: a schema
can make the smallest instance exponentially large, or hide it behind exponentially many alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import ceil, floor, lcm
from typing import Any

from gpu_worker.engines.minimal_json.schema import (
    TYPES,
    SchemaDocument,
    Unsatisfiable,
    Work,
    WorkExceeded,
    contains_min,
    dict_of,
    fraction_of,
    is_valid,
    list_of,
    number_of,
    prefix_and_rest,
    property_schemas,
    required_by,
    types_of,
)

_TRIES = 64
"""Candidates of one kind at most: for items that must differ, and for what `not` excludes."""
_TEXT_CHARS_MAX = 4_096
_FORMATS = {
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


def _strings(document: SchemaDocument, parts: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield texts. Raises Unsatisfiable for one that would be too long, and for an unsupported pattern."""
    least = ceil(max((number_of(part, "minLength") or 0 for part in parts), default=0))
    if least > _TEXT_CHARS_MAX:
        raise Unsatisfiable(f"a text needs more than {_TEXT_CHARS_MAX} characters")
    document.work.spend(1 + least // 8)
    patterns = [part["pattern"] for part in parts if "pattern" in part]
    formats = [_FORMATS[name] for part in parts if (name := str(part.get("format"))) in _FORMATS]
    if patterns:
        yield from _matching(document, patterns, least)
    elif formats:
        yield formats[0]
    else:
        yield from ("a" * (least + more) for more in range(_TRIES))


def _matching(document: SchemaDocument, patterns: list[Any], least: int) -> Iterator[str]:
    for pattern in patterns:
        for more in range(8):
            text = document.pattern(pattern).example(least + more)
            yield text
            yield text.ljust(least + more, "a")  # a pattern without `$` allows any text behind it


def _numbers(parts: list[Mapping[str, Any]], *, whole: bool) -> Iterator[int | float]:
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
    for count in range(_TRIES):
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


_DEPTH_MAX = 32
"""Nested values of an instance at most."""
_IMPLIED = {
    "object": {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "propertyNames"},
    "array": {"items", "prefixItems", "minItems", "contains", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Keywords that show which type is meant where `type` is missing."""

_CHOICES = {"anyOf", "oneOf", "if", "not", "enum", "const", "dependentSchemas"}
"""Keywords that decide between several values."""

_Schemas = list[Any]
"""Schemas that must all hold for one value."""


def minimal_instance(schema: Any, *also: Any) -> Any:
    """Return a small value that is valid against `schema`, and against all of `also`.

    Raises Unsatisfiable if it finds none. A valid value may exist even so, for example behind a `not`.
    """
    work = Work()
    try:
        for depth in range(_DEPTH_MAX + 1):
            search = _InstanceSearch(SchemaDocument(schema, work))
            try:
                value = search.build([schema, *also], depth)
                if search.is_valid([schema, *also], value):
                    return value
                raise Unsatisfiable("no simple value satisfies all of its keywords")
            except Unsatisfiable:
                if not search.was_cut:
                    raise
    except RecursionError:
        raise Unsatisfiable("its schemas are nested too deeply") from None
    raise Unsatisfiable(f"its values are nested more than {_DEPTH_MAX} deep")


@dataclass
class _InstanceSearch:
    """`was_cut`: the depth ended the search somewhere, so more depth may find an instance."""

    document: SchemaDocument
    was_cut: bool = False

    def build(self, schemas: _Schemas, depth: int) -> Any:
        """Return a value that is valid against all `schemas`, with at most `depth` levels below it."""
        if depth < 0:
            self.was_cut = True
            raise Unsatisfiable("it is nested too deeply")
        parts = self._flatten_schemas(schemas)
        is_choice = any(_CHOICES & part.keys() for part in parts)
        for value in self._values(parts, depth):
            if not is_choice and isinstance(value, dict | list):
                return value  # its parts are checked one by one, and the root is checked as a whole
            if self.is_valid(schemas, value):
                return value
        raise Unsatisfiable("no simple value satisfies all of its keywords")

    def is_valid(self, schemas: _Schemas, value: Any) -> bool:
        return all(is_valid(self.document, schema, value) for schema in schemas)

    def _flatten_schemas(self, schemas: _Schemas) -> _Schemas:
        """Return the schemas without `$ref` and `allOf`: their targets and parts stand beside them."""
        found: _Schemas = []
        left, references = list(reversed(schemas)), set()
        while left:
            self.document.work.spend()
            schema = left.pop()
            if schema is True:
                continue
            if not isinstance(schema, dict):
                raise Unsatisfiable("a part of it allows no value, or is no schema")
            if own := {name: each for name, each in schema.items() if name not in ("$ref", "allOf")}:
                found.append(own)
            left.extend(reversed(list_of(schema, "allOf")))
            if "$ref" in schema and (reference := str(schema["$ref"])) not in references:
                references.add(reference)
                left.append(self.document.resolve(schema["$ref"]))
        return found

    def _values(self, parts: _Schemas, depth: int) -> Iterator[Any]:
        """Yield candidates, simple ones first."""
        for at, part in enumerate(parts):
            for keyword in ("anyOf", "oneOf", "if"):
                if keyword in part:
                    rest = [*parts[:at], _without(part, keyword), *parts[at + 1 :]]
                    yield from self._alternatives(rest, _options(part, keyword), depth)
                    return
        yield from self._plain(parts, depth)

    def _alternatives(self, rest: _Schemas, options: _Schemas, depth: int) -> Iterator[Any]:
        reason = Unsatisfiable("it has no alternatives")
        for option in options:
            try:
                yield from self._values(self._flatten_schemas([*rest, option]), depth)
            except WorkExceeded:
                raise
            except Unsatisfiable as error:
                reason = error
        raise reason

    def _plain(self, parts: _Schemas, depth: int) -> Iterator[Any]:
        listed = [list_of(part, "enum") for part in parts if "enum" in part]
        listed += [[part["const"]] for part in parts if "const" in part]
        if listed:
            self.document.work.spend(len(listed[0]))
            yield from min(listed, key=len)
            return
        reason = None
        for name in _types(parts):
            try:
                yield from self._of_type(name, parts, depth)
            except WorkExceeded:
                raise
            except Unsatisfiable as error:
                reason = reason or error
        if reason is not None:
            raise reason

    def _of_type(self, name: str, parts: _Schemas, depth: int) -> Iterator[Any]:
        if name == "object":
            yield self._object(parts, depth)
        elif name == "array":
            yield self._array(parts, depth)
        elif name == "string":
            yield from _strings(self.document, parts)
        elif name in ("integer", "number"):
            yield from _numbers(parts, whole=name == "integer")
        elif name == "boolean":
            yield from (False, True)
        else:
            yield None

    def _object(self, parts: _Schemas, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        while missing := self._missing(parts, built):
            for name in missing:
                built[name] = self._property(parts, name, depth)
        least = max((number_of(part, "minProperties") or 0 for part in parts), default=0)
        optional = [name for part in parts for name in dict_of(part, "properties")]
        for name in dict.fromkeys(optional):
            if len(built) < least and name not in built:
                built[name] = self._property(parts, name, depth)
        while len(built) < least:
            name = self._new_name(parts, built, depth)
            built[name] = self._property(parts, name, depth)
        return built

    def _missing(self, parts: _Schemas, built: dict[str, Any]) -> list[str]:
        names = chain.from_iterable(required_by(part, built) for part in parts)
        return [name for name in dict.fromkeys(names) if name not in built]

    def _property(self, parts: _Schemas, name: str, depth: int) -> Any:
        self.document.work.spend(len(parts))
        schemas = [each for part in parts for each in property_schemas(self.document, part, name)]
        return self.build(schemas, depth - 1)

    def _new_name(self, parts: _Schemas, built: dict[str, Any], depth: int) -> str:
        names = [part["propertyNames"] for part in parts if "propertyNames" in part]
        return str(self.build([*names, {"type": "string", "minLength": 1}, {"not": {"enum": list(built)}}], depth))

    def _array(self, parts: _Schemas, depth: int) -> list[Any]:
        layouts = [prefix_and_rest(part) for part in parts]
        contained = max((contains_min(part) for part in parts), default=0)
        least = max((number_of(part, "minItems") or 0 for part in parts), default=0)
        unique = any(part.get("uniqueItems") is True for part in parts)
        built: list[Any] = []
        while len(built) < max(least, contained):
            at = len(built)
            schemas = [prefix[at] if at < len(prefix) else rest for prefix, rest in layouts]
            schemas += [part["contains"] for part in parts if at < contains_min(part)]
            schemas += [{"not": {"enum": list(built)}}] if unique and built else []
            built.append(self.build(schemas, depth - 1))
        return built


def _without(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    gone = ("if", "then", "else") if keyword == "if" else (keyword,)
    return {name: each for name, each in schema.items() if name not in gone}


def _options(schema: dict[str, Any], keyword: str) -> _Schemas:
    if keyword != "if":
        return list_of(schema, keyword)
    return [{"allOf": [schema["if"], schema.get("then", True)]}, schema.get("else", True)]


def _types(parts: _Schemas) -> list[str]:
    """Return the types that all parts allow: the implied ones first, then from the smallest value to the largest."""
    allowed = [set(types_of(part)) for part in parts]
    names = [name for name in TYPES if all(_allows(types, name) for types in allowed)]
    keywords = set().union(*parts) if parts else set()
    if not any("type" in part for part in parts):
        names.sort(key=lambda name: not (_IMPLIED.get(name, set()) & keywords))
    return names


def _allows(types: set[str], name: str) -> bool:
    return name in types or (name == "integer" and "number" in types)
