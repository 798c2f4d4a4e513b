"""Schemas and regular expressions: the size that an engine would compile is bounded, not only the size of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.fields.limits import ALTERNATIVES_MAX, ENUM_MAX, INTEGER_MAX, PATTERN_SIZE_MAX
from dispatcher.fields.parse import parse_request
from dispatcher.fields.schemas import pattern_size
from dispatcher.model.errors import InvalidRequest

CANARY = "canary-7f3a"


def parse(schema: Any) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": form}
    return parse_request(body).body["response_format"]["json_schema"]["schema"]


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse(schema)
    assert caught.value.param == "response_format.json_schema.schema"
    assert CANARY not in json.dumps(caught.value.body())
    return caught.value.message


def doubling(levels: int) -> dict[str, Any]:
    """Return definitions of which each refers twice to the next one: 2 ** levels values."""
    two = {f"d{each}": {"anyOf": [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**two, f"d{levels}": {"type": "string"}}}


def chain(length: int) -> dict[str, Any]:
    links = {f"d{each}": {"$ref": f"#/$defs/d{each + 1}"} for each in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {}}}


RECURSIVE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}},
}
NAMED_LIKE_KEYWORDS = {"properties": {"$ref": {"type": "string"}, "enum": {}, "pattern": {}, "anyOf": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        doubling(8),
        chain(50),
        RECURSIVE,
        NAMED_LIKE_KEYWORDS,
        {"$ref": "#"},
        {"$ref": "#/missing"},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
        {"anyOf": [{"const": 1}] * ALTERNATIVES_MAX},
        {"enum": ["x"] * ENUM_MAX},
        {"type": "string", "pattern": "^[a-z]{1,64}$", "maxLength": 10**6},
        {"properties": {f"p{each}": {"pattern": "a" * 1000} for each in range(50)}},
        {"maximum": INTEGER_MAX, "minimum": -1e300},
    ],
)
def test_a_bounded_schema_is_passed_unchanged(schema: dict[str, Any]) -> None:
    assert parse(schema) == schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (doubling(20), "replaced"),
        (doubling(2000), "replaced"),
        (chain(5000), "replaced"),
        ({"anyOf": [{"const": 1}] * (ALTERNATIVES_MAX + 1)}, "alternatives"),
        ({"properties": {"a": {"oneOf": [True] * 1000}}}, "alternatives"),
        ({"enum": ["x"] * (ENUM_MAX + 1)}, "enum"),
        ({"$ref": f"http://169.254.169.254/{CANARY}"}, "`$ref` must begin with `#`"),
        ({"items": {"$dynamicRef": f"{CANARY}.json"}}, "`$dynamicRef` must begin with `#`"),
        ({"pattern": "((a{99}){99}){99}"}, "regular expression"),
        ({"patternProperties": {"((a{99}){99}){99}": True}}, "regular expression"),
        ({"properties": {f"p{each}": {"pattern": "a" * 1000} for each in range(51)}}, "regular expression"),
        ({"maximum": INTEGER_MAX + 1}, "out of range"),
        ({"maximum": float("inf")}, "out of range"),
        ([], "an object"),
        (CANARY, "an object"),
    ],
)
def test_an_exploding_schema_is_refused(schema: Any, reason: str) -> None:
    assert reason in refusal(schema)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"\d{4}-\d{2}", 7),
        ("[a-z]{3}", 3),
        (r"[\]{9}]{2}", 2),
        ("(ab){3}", 6),
        ("(a{2}b){3}", 9),
        ("a{2,5}", 5),
        ("a{2,}", 2),
        ("((a{99}){99}){99}", 99**3),
        ("(a", 1),
        ("a)", 2),
        ("a{0}", 1),
        ("x{99999999999999}", 999_999_999),
        ("a{,7}", 7),
    ],
)
def test_the_size_of_a_pattern(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


@given(st.text(alphabet="ab(){}[],0129\\^", max_size=40))
def test_any_pattern_has_a_size(pattern: str) -> None:
    assert pattern_size(pattern) >= 0


def test_a_pattern_at_its_limit_and_beyond() -> None:
    parse({"pattern": f"a{{{PATTERN_SIZE_MAX}}}"})
    refusal({"pattern": f"a{{{PATTERN_SIZE_MAX + 1}}}"})
