"""Reads the keywords of one JSON schema, whatever a client wrote there. Pure.

Each function raises Unsatisfiable for a value that the keyword cannot have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import chain
from typing import Any

from gpu_worker.engines.minimal_json.document import SchemaDocument, Unsatisfiable

TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and value == int(value),
    "number": lambda value: is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
"""The types from the smallest value to the largest."""
NUMBER_MAX = 1e300


def is_number(value: Any) -> bool:
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
    if found is None or (is_number(found) and abs(found) <= NUMBER_MAX):
        return found
    raise Unsatisfiable(f"`{keyword}` must be a number of at most {NUMBER_MAX}")


def fraction_of(number: float) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth."""
    return Fraction(str(number))


def canonical(value: Any) -> str:
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
