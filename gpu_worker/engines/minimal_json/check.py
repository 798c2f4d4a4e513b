"""Checks a value against a JSON schema (draft 2020-12, with the older forms of `items` and `definitions`). Pure.

It knows the keywords that instance.py can satisfy. `format` is an annotation, as the standard has it by default. A
keyword in UNSUPPORTED would change which values are valid, so a schema that has it gets no instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from gpu_worker.engines.minimal_json.document import SchemaDocument, Unsatisfiable
from gpu_worker.engines.minimal_json.keywords import (
    TYPES,
    canonical,
    contains_min,
    dict_of,
    fraction_of,
    is_number,
    list_of,
    number_of,
    prefix_and_rest,
    property_schemas,
    required_by,
    types_of,
)

UNSUPPORTED = frozenset({"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies"})


def is_valid(document: SchemaDocument, schema: Any, value: Any) -> bool:
    """Raises Unsatisfiable for a schema that is none or has an unsupported keyword."""
    document.work.spend()
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise Unsatisfiable("a schema must be an object or a boolean")
    if found := UNSUPPORTED & schema.keys():
        raise Unsatisfiable(f"`{min(found)}` is not supported")
    if not any(TYPES[name](value) for name in types_of(schema)):
        return False
    if not _is_one_of(document, schema, value):
        return False
    if isinstance(value, str) and not _is_valid_string(document, schema, value):
        return False
    if is_number(value) and not _is_valid_number(schema, value):
        return False
    if isinstance(value, list) and not _is_valid_array(document, schema, value):
        return False
    if isinstance(value, dict) and not _is_valid_object(document, schema, value):
        return False
    return _is_valid_combination(document, schema, value)


def _is_one_of(document: SchemaDocument, schema: Mapping[str, Any], value: Any) -> bool:
    if "const" in schema and canonical(schema["const"]) != canonical(value):
        return False
    if "enum" not in schema:
        return True
    document.work.spend(len(list_of(schema, "enum")))
    return canonical(value) in {canonical(each) for each in schema["enum"]}


def _is_valid_string(document: SchemaDocument, schema: Mapping[str, Any], value: str) -> bool:
    low, high = number_of(schema, "minLength") or 0, number_of(schema, "maxLength")
    fits = low <= len(value) and (high is None or len(value) <= high)
    return fits and ("pattern" not in schema or document.matches(schema["pattern"], value))


def _is_valid_number(schema: Mapping[str, Any], value: float) -> bool:
    for keyword, holds in BOUNDS.items():
        bound = number_of(schema, keyword)
        if bound is not None and not holds(value, bound):
            return False
    step = number_of(schema, "multipleOf")
    return not step or (fraction_of(value) / fraction_of(step)).denominator == 1


BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}


def _is_valid_array(document: SchemaDocument, schema: Mapping[str, Any], value: list[Any]) -> bool:
    low, high = number_of(schema, "minItems") or 0, number_of(schema, "maxItems")
    if len(value) < low or (high is not None and len(value) > high):
        return False
    if schema.get("uniqueItems") is True and len({canonical(each) for each in value}) < len(value):
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
