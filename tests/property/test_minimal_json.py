"""Small instances of random JSON schemas, and our check of them, against the `jsonschema` package."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.minimal_json.instance import minimal_instance
from gpu_worker.engines.minimal_json.patterns import parse_pattern
from gpu_worker.engines.minimal_json.schema import SchemaDocument, Unsatisfiable, is_valid

jsonschema = pytest.importorskip("jsonschema")

names = st.sampled_from(["a", "b", "c1"])
small = st.integers(0, 3)
scalars = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.25]) | st.text("ab1", max_size=3)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
PATTERNS = ["^a", "b$", "^[ab]{2,3}$", "^(a|bb)+$", r"^\d{2}$", "^[^a]", "1?", r"^c\d$"]


kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
OPTIONAL: dict[str, Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]] = {
    "type": lambda inner: kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
    "enum": lambda inner: st.lists(values, min_size=1, max_size=3),
    "const": lambda inner: values,
    "minimum": lambda inner: st.integers(-5, 5) | st.sampled_from([0.5, -0.25]),
    "exclusiveMaximum": lambda inner: st.integers(-5, 5),
    "multipleOf": lambda inner: st.sampled_from([1, 2, 3, 0.5, 0.25]),
    "minLength": lambda inner: small,
    "maxLength": lambda inner: small,
    "pattern": lambda inner: st.sampled_from(PATTERNS),
    "items": lambda inner: inner,
    "prefixItems": lambda inner: st.lists(inner, min_size=1, max_size=2),
    "minItems": lambda inner: small,
    "maxItems": lambda inner: small,
    "uniqueItems": lambda inner: st.booleans(),
    "contains": lambda inner: inner,
    "minContains": lambda inner: small,
    "maxContains": lambda inner: small,
    "properties": lambda inner: st.dictionaries(names, inner, max_size=3),
    "patternProperties": lambda inner: st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=1),
    "additionalProperties": lambda inner: inner,
    "required": lambda inner: st.lists(names, max_size=2, unique=True),
    "minProperties": lambda inner: small,
    "maxProperties": lambda inner: small,
    "propertyNames": lambda inner: st.just({"pattern": "^[a-c]"}),
    "dependentRequired": lambda inner: st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=1),
    "dependentSchemas": lambda inner: st.dictionaries(names, inner, max_size=1),
    "allOf": lambda inner: st.lists(inner, min_size=1, max_size=2),
    "anyOf": lambda inner: st.lists(inner, min_size=1, max_size=3),
    "oneOf": lambda inner: st.lists(inner, min_size=1, max_size=3),
    "not": lambda inner: inner,
    "if": lambda inner: inner,
    "then": lambda inner: inner,
    "else": lambda inner: inner,
    "$ref": lambda inner: st.sampled_from(["#/$defs/a", "#/$defs/b"]),
}


def few(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Two to five keywords: with more, almost no schema has an instance."""
    chosen = st.lists(st.sampled_from(sorted(OPTIONAL)), min_size=2, max_size=5, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: OPTIONAL[name](inner) for name in names}))


no_reference: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.just({}),
    lambda inner: few(inner).map(lambda schema: {name: part for name, part in schema.items() if name != "$ref"}),
    max_leaves=5,
)
documents = st.builds(
    lambda schema, kind, a, b: {"type": kind, **schema, "$defs": {"a": a, "b": b}},
    st.recursive(st.just({}), few, max_leaves=5),
    st.sampled_from(["integer", "number", "string", "array", "array", "object", "object"]),
    no_reference,
    no_reference,
)
"""Without a type, null would be an instance of most."""


@given(documents)
def test_an_instance_is_valid(schema: dict[str, Any]) -> None:
    try:
        found = minimal_instance(schema)
    except Unsatisfiable:
        return
    assert jsonschema.Draft202012Validator(schema).is_valid(found)


@given(documents, values)
def test_the_check_agrees_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    assert is_valid(SchemaDocument(schema), schema, value) == jsonschema.Draft202012Validator(schema).is_valid(value)


def plain(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas as frameworks make them from classes: every one has an instance."""
    properties = st.dictionaries(names, inner, min_size=1, max_size=3)
    return (
        st.builds(
            lambda fields, closed: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields),
                "additionalProperties": not closed,
            },
            properties,
            st.booleans(),
        )
        | st.builds(lambda item, least: {"type": "array", "items": item, "minItems": least}, inner, small)
        | st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    )


leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, st.integers(), small),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, st.floats(-1e9, 1e9)),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more}, small, small),
    st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(["date-time", "uuid", "email", "unheard-of"]).map(lambda name: {"type": "string", "format": name}),
    st.lists(scalars, min_size=1, max_size=3).map(lambda options: {"enum": options}),
    st.just({"type": ["string", "null"]}),
)


@given(st.recursive(leaves, plain, max_leaves=8))
def test_a_schema_of_classes_has_an_instance(schema: dict[str, Any]) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid(minimal_instance(schema))


atoms = st.sampled_from(["a", "b", r"\d", r"\w", r"\s", ".", "[ab]", "[^a]", "[a-c1]", r"\.", "^", "$", r"[\d_]"])
patterns = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda options: "(?:" + "|".join(options) + ")")
        | st.builds(
            lambda body, times: f"({body}){times}", inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"])
        )
    ),
    max_leaves=6,
)


@given(patterns, st.text("ab1 ._", max_size=6), small)
def test_a_pattern_matches_where_re_finds_it(pattern: str, text: str, least: int) -> None:
    ours = parse_pattern(pattern)
    assert ours.matches(text, lambda units: None) == bool(re.search(pattern, text))
    example = ours.example(least)
    if "^" not in pattern and "$" not in pattern:
        assert re.search(pattern, example)
