"""A JSON schema (draft 2020-12, with the older forms of `items` and `definitions`): its references, its keywords,
whatever a client wrote there, and the check of a value. Pure.

It knows the keywords that instance.py can satisfy. `format` is an annotation, as the standard has it by default. A
keyword in _UNSUPPORTED would change which values are valid, so a schema that has it gets no instance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote

from gpu_worker.engines.minimal_json.patterns import PatternPart, parse_pattern

_WORK_MAX = 20_000
"""Visits of schemas, places of a text under a pattern, and compared values, for one instance."""


class Unsatisfiable(Exception):
    """No small instance of this schema was found. The message says why."""


class WorkExceeded(Unsatisfiable):
    """The search for an instance takes too much work."""

    def __init__(self) -> None:
        super().__init__("it needs too large a value, or has too many alternatives")


@dataclass
class Work:
    left: int = _WORK_MAX

    def spend(self, units: int = 1) -> None:
        """Raises WorkExceeded."""
        self.left -= units
        if self.left < 0:
            raise WorkExceeded


@dataclass
class SchemaDocument:
    """A schema document: its references, and the work that one instance may cost. `root`: the whole schema, in which
    `$ref` finds its target."""

    root: Any
    work: Work = field(default_factory=Work)
    _patterns: dict[str, PatternPart] = field(default_factory=dict)

    def pattern(self, text: Any) -> PatternPart:
        """Raises Unsatisfiable for a pattern that is not understood."""
        if not isinstance(text, str):
            raise Unsatisfiable("a pattern must be a string")
        if text not in self._patterns:
            self.work.spend(1 + len(text) // 8)
            try:
                self._patterns[text] = parse_pattern(text)
            except ValueError as error:
                raise Unsatisfiable(f"the pattern {text[:80]!r} is not supported: {error}") from None
        return self._patterns[text]

    def matches(self, pattern: Any, text: str) -> bool:
        """Return whether the pattern occurs in `text`, as JSON Schema defines it."""
        self.work.spend(len(text) // 8)
        return self.pattern(pattern).matches(text, self.work.spend)

    def resolve(self, reference: Any) -> Any:
        """Return the schema at a local reference, such as `#/$defs/name`. Raises Unsatisfiable for any other."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise Unsatisfiable(f"the reference {str(reference)[:80]!r} does not point into the same schema")
        found = self.root
        for escaped in reference.split("/")[1:]:
            name = unquote(escaped).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise Unsatisfiable(f"the reference {reference[:80]!r} has no target") from None
        return found


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
"""The types from the smallest value to the largest."""
_NUMBER_MAX = 1e300


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types that the schema allows."""
    named = schema.get("type", list(TYPES))
    names = named if isinstance(named, list) else [named]
    if not all(isinstance(name, str) and name in TYPES for name in names):
        raise Unsatisfiable("a `type` is unknown")
    if schema.get("nullable") is True and "null" not in names:  # OpenAPI 3.0
        names = [*names, "null"]
    return tuple(names)


def prefix_and_rest(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of an array's first items, and the schema of all others."""
    if isinstance(items := schema.get("items"), list):  # before draft 2020-12
        return items, schema.get("additionalItems", True)
    return list_of(schema, "prefixItems"), schema.get("items", True)


def property_schemas(document: SchemaDocument, schema: Mapping[str, Any], name: str) -> list[Any]:
    """Return the schemas of the object's property `name`."""
    named, patterns = dict_of(schema, "properties"), dict_of(schema, "patternProperties")
    found = [named[name]] if name in named else []
    found += [patterns[pattern] for pattern in patterns if document.matches(pattern, name)]
    return found or [schema.get("additionalProperties", True)]


def dict_of(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    if not isinstance(found := schema.get(keyword, {}), dict):
        raise Unsatisfiable(f"`{keyword}` must be an object")
    return found


def list_of(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    if not isinstance(found := schema.get(keyword, []), list):
        raise Unsatisfiable(f"`{keyword}` must be an array")
    return found


def number_of(schema: Mapping[str, Any], keyword: str) -> int | float | None:
    found = schema.get(keyword)
    if found is None or (_is_number(found) and abs(found) <= _NUMBER_MAX):
        return found
    raise Unsatisfiable(f"`{keyword}` must be a number of at most {_NUMBER_MAX}")


def fraction_of(number: float) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth."""
    return Fraction(str(number))


def _canonical(value: Any) -> str:
    """Return one text for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def contains_min(schema: Mapping[str, Any]) -> float:
    """Return the number of items that must be valid against `contains`."""
    if "contains" not in schema:
        return 0
    least = number_of(schema, "minContains")
    return 1 if least is None else least


def required_by(schema: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[str]:
    """Yield the properties that the schema requires of an object with the properties `present`."""
    dependent = dict_of(schema, "dependentRequired")
    lists = [list_of(schema, "required"), *(list_of(dependent, name) for name in dependent if name in present)]
    for name in chain.from_iterable(lists):
        if not isinstance(name, str):
            raise Unsatisfiable("a required property must be a string")
        yield name


_UNSUPPORTED = frozenset({"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies"})


def is_valid(document: SchemaDocument, schema: Any, value: Any) -> bool:
    """Raises Unsatisfiable for a schema that is none or has an unsupported keyword."""
    document.work.spend()
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise Unsatisfiable("a schema must be an object or a boolean")
    if found := _UNSUPPORTED & schema.keys():
        raise Unsatisfiable(f"`{min(found)}` is not supported")
    if not any(TYPES[name](value) for name in types_of(schema)):
        return False
    if not _is_one_of(document, schema, value):
        return False
    if isinstance(value, str) and not _is_valid_string(document, schema, value):
        return False
    if _is_number(value) and not _is_valid_number(schema, value):
        return False
    if isinstance(value, list) and not _is_valid_array(document, schema, value):
        return False
    if isinstance(value, dict) and not _is_valid_object(document, schema, value):
        return False
    return _is_valid_combination(document, schema, value)


def _is_one_of(document: SchemaDocument, schema: Mapping[str, Any], value: Any) -> bool:
    if "const" in schema and _canonical(schema["const"]) != _canonical(value):
        return False
    if "enum" not in schema:
        return True
    document.work.spend(len(list_of(schema, "enum")))
    return _canonical(value) in {_canonical(each) for each in schema["enum"]}


def _is_valid_string(document: SchemaDocument, schema: Mapping[str, Any], value: str) -> bool:
    low, high = number_of(schema, "minLength") or 0, number_of(schema, "maxLength")
    fits = low <= len(value) and (high is None or len(value) <= high)
    return fits and ("pattern" not in schema or document.matches(schema["pattern"], value))


def _is_valid_number(schema: Mapping[str, Any], value: float) -> bool:
    for keyword, holds in _BOUNDS.items():
        bound = number_of(schema, keyword)
        if bound is not None and not holds(value, bound):
            return False
    step = number_of(schema, "multipleOf")
    return not step or (fraction_of(value) / fraction_of(step)).denominator == 1


_BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}


def _is_valid_array(document: SchemaDocument, schema: Mapping[str, Any], value: list[Any]) -> bool:
    low, high = number_of(schema, "minItems") or 0, number_of(schema, "maxItems")
    if len(value) < low or (high is not None and len(value) > high):
        return False
    if schema.get("uniqueItems") is True and len({_canonical(each) for each in value}) < len(value):
        return False
    prefix, rest = prefix_and_rest(schema)
    if not all(is_valid(document, each, item) for each, item in zip(prefix, value, strict=False)):
        return False
    if not all(is_valid(document, rest, item) for item in islice(value, len(prefix), None)):
        return False
    if "contains" not in schema:
        return True
    count = sum(is_valid(document, schema["contains"], item) for item in value)
    most = number_of(schema, "maxContains")
    return count >= contains_min(schema) and (most is None or count <= most)


def _is_valid_object(document: SchemaDocument, schema: Mapping[str, Any], value: dict[str, Any]) -> bool:
    low, high = number_of(schema, "minProperties") or 0, number_of(schema, "maxProperties")
    if len(value) < low or (high is not None and len(value) > high):
        return False
    if any(name not in value for name in required_by(schema, value)):
        return False
    names = schema.get("propertyNames", True)
    for name, each in value.items():
        if not is_valid(document, names, name):
            return False
        if not all(is_valid(document, part, each) for part in property_schemas(document, schema, name)):
            return False
    return all(
        is_valid(document, part, value) for name, part in dict_of(schema, "dependentSchemas").items() if name in value
    )


def _is_valid_combination(document: SchemaDocument, schema: Mapping[str, Any], value: Any) -> bool:
    def valid(part: Any) -> bool:
        return is_valid(document, part, value)

    if "$ref" in schema and not valid(document.resolve(schema["$ref"])):
        return False
    if not all(valid(part) for part in list_of(schema, "allOf")):
        return False
    if "anyOf" in schema and not any(valid(part) for part in list_of(schema, "anyOf")):
        return False
    if "oneOf" in schema and sum(valid(part) for part in list_of(schema, "oneOf")) != 1:
        return False
    if "not" in schema and valid(schema["not"]):
        return False
    if "if" in schema:
        return valid(schema.get("then" if valid(schema["if"]) else "else", True))
    return True
