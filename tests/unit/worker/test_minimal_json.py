"""Small instances of JSON schemas by name, and the bounds of the search."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.engines.minimal_json.instance import minimal_instance
from gpu_worker.engines.minimal_json.schema import Unsatisfiable, WorkExceeded

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"],
}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


SMALLEST: list[tuple[Any, Any]] = [
    ({}, None),
    (True, None),
    ({"type": "object", "properties": {"optional": {"type": "string"}}}, {}),
    (obj(city={"type": "string"}, days={"type": "integer", "minimum": 3}), {"city": "", "days": 3}),
    (obj(unit={"enum": ["celsius", "kelvin"]}, fixed={"const": 7}), {"unit": "celsius", "fixed": 7}),
    ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, {"value": 0, "next": None}),
    ({"definitions": {"a/b": {"type": "boolean"}}, "$ref": "#/definitions/a~1b"}, False),
    ({"type": ["string", "null"]}, None),
    ({"type": "string", "nullable": True}, None),
    ({"minLength": 2}, "aa"),
    ({"type": "string", "format": "date"}, "1970-01-01"),
    ({"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"}, "AA-000"),
    ({"type": "string", "pattern": "^(a|bb)+$", "minLength": 3}, "aaa"),
    ({"type": "string", "pattern": "x", "minLength": 3}, "xaa"),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, 0.25),
    ({"type": "integer", "multipleOf": 7, "minimum": 1}, 7),
    ({"type": "number", "maximum": -0.5, "multipleOf": 0.1}, -1),
    ({"type": "integer", "exclusiveMaximum": 0}, -1),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True}, [0, 1, 2]),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}], "minItems": 2}, [None, 1]),
    ({"type": "array", "contains": {"const": 5}, "minContains": 2}, [5, 5]),
    ({"type": "object", "minProperties": 2, "additionalProperties": {"type": "null"}}, {"a": None, "aa": None}),
    ({"allOf": [obj(a={"type": "string"}), {"properties": {"a": {"minLength": 1}}}]}, {"a": "a"}),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": -1}, {"const": "x"}]}, -0.5),
    ({"anyOf": [obj(deep=obj(deeper={})), obj(flat={})]}, {"flat": None}),
    ({"not": {"type": ["null", "boolean"]}}, 0),
    ({**obj(a={"const": 1}), "if": obj(a={"const": 1}), "then": obj(b={"const": 2})}, {"a": 1, "b": 2}),
    ({"$id": "https://example.com/a", "type": "boolean"}, False),
]


@pytest.mark.parametrize(("schema", "smallest"), SMALLEST)
def test_the_instance_is_as_small_as_it_can_be(schema: Any, smallest: Any) -> None:
    assert minimal_instance(schema) == smallest


def test_all_schemas_hold_for_the_instance() -> None:
    assert minimal_instance({}, {"type": "object"}) == {}


REFUSED: list[tuple[Any, str]] = [
    (False, "no value"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "keywords"),
    ({"type": "whole"}, "`type` is unknown"),
    ({"type": "object", "required": [["a"]]}, "must be a string"),
    ({"type": "object", "properties": []}, "`properties` must be an object"),
    ({"type": "string", "minLength": "x"}, "`minLength` must be a number"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": "(a"}, "without its end"),
    ({"$ref": "https://example.com/schema"}, "does not point into the same schema"),
    ({"$ref": "#/$defs/missing"}, "has no target"),
    ({"$ref": "#"}, "nested too deeply"),
    (obj(self={"$ref": "#"}), "nested more than 32 deep"),
    ({"unevaluatedProperties": False}, "`unevaluatedProperties` is not supported"),
    ({"type": "string", "minLength": 10**9}, "more than 4096 characters"),
    ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "1000 characters"),
]


@pytest.mark.parametrize(("schema", "why"), REFUSED)
def test_a_schema_without_a_simple_instance_is_refused_with_a_reason(schema: Any, why: str) -> None:
    with pytest.raises(Unsatisfiable, match=why):
        minimal_instance(schema)


def tree(levels: int, width: int) -> dict[str, Any]:
    """A schema whose only instance has width ** levels leaves."""
    definitions: dict[str, Any] = {
        f"d{level}": obj(**{f"p{n}": {"$ref": f"#/$defs/d{level + 1}"} for n in range(width)})
        for level in range(levels)
    }
    return {"$defs": {**definitions, f"d{levels}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def hopeless(levels: int, width: int) -> dict[str, Any]:
    """A schema with width ** levels combinations of alternatives, none of which is valid."""
    option: dict[str, Any] = {"anyOf": [{"minLength": 1}] * width}
    return {"type": "string", "maxLength": 0, "allOf": [option] * levels}


EXPLODING = [
    tree(levels=25, width=2),
    hopeless(levels=20, width=10),
    {"type": "array", "minItems": 10**9},
    {"type": "object", "minProperties": 10**9},
    {"type": "array", "minItems": 5_000, "uniqueItems": True},
    {"enum": ["a" * 1_000_000], "pattern": "^(a|aa)+$"},
]


@pytest.mark.parametrize("schema", EXPLODING)
def test_the_work_is_bounded(schema: Any) -> None:
    with pytest.raises(WorkExceeded):
        minimal_instance(schema)


def test_a_thousand_alternatives_and_a_thousand_properties_are_no_problem() -> None:
    options = [obj(kind={"const": number}) for number in range(1_000)]
    assert minimal_instance({"oneOf": options}) == {"kind": 0}
    assert len(minimal_instance(obj(**{f"p{number}": {"type": "string"} for number in range(1_000)}))) == 1_000


def test_a_pattern_that_makes_backtracking_explode_is_matched_in_bounded_time() -> None:
    with pytest.raises(Unsatisfiable, match="keywords"):
        minimal_instance({"enum": ["a" * 40 + "!"], "pattern": "^(a+)+$"})
    assert minimal_instance({"type": "string", "pattern": "^" + "a?" * 30 + "a{30}$"}) == "a" * 30
