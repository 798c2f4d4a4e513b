"""The OpenAPI document and the page say what the app does."""

from __future__ import annotations

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

from dispatcher.fields.kinds import FieldTable, Shape
from dispatcher.fields.shapes import Anything, ByFirst, Either, Entries, Items, Record, Tagged
from dispatcher.fields.tables import ALL
from functions.http_api.app import make_app
from functions.http_api.openapi import ACCEPTED, OPERATIONS, document, page, schema_of
from tests.support.world.memory_gate import Gate


def routes() -> set[tuple[str, str]]:
    found = {
        (method.lower(), re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path))
        for route in make_app().routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    return {each for each in found if each[1] not in ("/docs", "/openapi.json") and "/operator" not in each[1]}


def test_each_route_of_the_app_is_in_the_document() -> None:
    assert {(each.method, each.path) for each in OPERATIONS} == routes()


def test_the_document_is_valid() -> None:
    validate(document())


def test_a_body_that_the_document_allows_is_checked_by_its_schema() -> None:
    schema = document()["components"]["schemas"]["ChatCompletionsRequest"]
    good = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "n": 2, "stop": ["a"], "top_p": None}
    jsonschema.validate(good, schema)
    wrongs: tuple[dict[str, Any], ...] = (
        {"n": 0},
        {"messages": []},
        {"surprise": 1},
        {"messages": [{"role": "king"}]},
        {"stream": "yes"},
        {"logit_bias": {"x": 1}},
    )
    for wrong in wrongs:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, **wrong}, schema)


def shapes(tables: tuple[FieldTable, ...]) -> list[Shape]:
    """Return every shape of the tables, at any depth."""
    found: list[Shape] = []
    open_ = [field.shape for table in tables for field in table.fields.values() if field.kind in ACCEPTED]
    while open_:
        found.append(shape := open_.pop())
        match shape:
            case Items() | Entries():
                open_.append(shape.of)
            case Record():
                open_ += [field.shape for field in shape.table.fields.values() if field.kind in ACCEPTED]
            case Tagged():
                open_ += [field.shape for form in shape.forms.values() for field in form.table.fields.values()]
            case Either():
                open_ += shape.shapes.values()
            case ByFirst():
                open_ += [each for each, _ in shape.shapes.values()]
    return found


def test_each_shape_of_the_table_has_a_schema() -> None:
    without = {type(shape).__name__ for shape in shapes(ALL) if not schema_of(shape)}
    assert without <= {Anything.__name__}


async def test_the_document_of_a_pool_that_drops_unknown_fields_allows_them(gate: Gate) -> None:
    reply = await gate.caller(None, context=gate.process(unknown_fields="drop")).get("/openapi.json")
    described = reply.json()
    validate(described)
    schema = described["components"]["schemas"]["ChatCompletionsRequest"]
    unknown = {"model": "m", "messages": [{"role": "user", "content": "hello", "mood": 1}], "surprise": 1}
    jsonschema.validate(unknown, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**unknown, "n": "two"}, schema)


async def test_the_parameters_of_usage_are_those_that_it_reads(gate: Gate) -> None:
    named = [each["name"] for each in document()["paths"]["/v1/usage"]["get"]["parameters"]]
    assert named == ["from", "to"]
    assert (await gate.caller().get("/v1/usage", query="from=0&to=3600")).status == 200
    assert (await gate.caller().get("/v1/usage", query="since=0")).status == 400


@pytest.mark.parametrize(("value", "status"), [(7.0, 200), (7.5, 400), (True, 400), (1e300, 400)])
async def test_a_whole_number_is_one_by_the_document_and_by_the_gate(gate: Gate, value: float, status: int) -> None:
    schema = document()["components"]["schemas"]["CompletionsRequest"]
    body = {"model": "m", "prompt": "p", "max_tokens": value}
    reply = await gate.caller().post("/v1/completions", body)
    assert reply.status == status
    if status == 200:
        jsonschema.validate(body, schema)
        assert gate.workers.orders[-1][1].max_tokens == 7


async def test_document_and_page_need_no_key(gate: Gate) -> None:
    reply = await gate.caller(None).get("/openapi.json")
    assert (reply.status, reply.json()["openapi"]) == (200, "3.1.0")
    shown = await gate.caller(None).get("/docs")
    assert shown.status == 200
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert b"/v1/chat/completions" in shown.body


def test_the_page_has_no_script_and_nothing_from_elsewhere() -> None:
    assert "<script" not in page()
    assert "//" not in page().replace("<!doctype html>", "")


@pytest.mark.parametrize(("key", "status"), [("a" * 128, 200), ("a.b_c:d-e", 200), ("a" * 129, 400), ("a b", 400)])
async def test_the_document_says_which_idempotency_keys_are_accepted(gate: Gate, key: str, status: int) -> None:
    operation = document()["paths"]["/v1/completions"]["post"]
    (named,) = (each for each in operation["parameters"] if each["name"] == "Idempotency-Key")
    assert bool(re.fullmatch(named["schema"]["pattern"], key)) == (status == 200)
    body = {"model": "m", "prompt": "p", "max_tokens": 1}
    assert (await gate.caller().post("/v1/completions", body, idempotency_key=key)).status == status
