"""Any JSON object is a Request, or InvalidRequest in words that repeat none of its values. Never another error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dispatcher.fields.chat_objects import ASSISTANT
from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.parse import check_capabilities, parse, parse_request, unread_fields
from dispatcher.fields.shapes import Form
from dispatcher.fields.tables import CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, TABLES
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.fleet import Capability
from dispatcher.model.requests import Endpoint, Request, request_from_json
from dispatcher.strict_json import parse_object

CANARY = "canary-3f9c1e"
T = TypeVar("T")
Fields = dict[str, Any]
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"}]
PLAIN: dict[Endpoint, Fields] = {
    Endpoint.CHAT: {"model": "m", "messages": TURNS},
    Endpoint.COMPLETION: {"model": "m", "prompt": "once"},
    Endpoint.EMBEDDINGS: {"model": "m", "input": "once"},
}
EVERYTHING = frozenset(Capability)

numbers = [0, 1, -1, 2, 2**31, 2**63, -(2**63), 10**400, -(10**400), 1e308, -0.0, 1e-320]
edges = st.sampled_from([*numbers, "", "\x00", " ", "\U0001f600", CANARY])
keys = st.sampled_from(
    [
        *("type", "text", "x", "function", "name", "role", "content", "image_url", "url", "json_schema", "schema"),
        *("tool_calls", "arguments", "id", "include_usage", "$ref", "anyOf", "json", "regex", "headgate_stage"),
    ]
)
words = st.sampled_from(["text", "function", "image_url", "user", "tool", "json_schema", "json_object", "#", "auto"])
values = st.recursive(
    st.none() | st.booleans() | edges | words | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "system", "assistant", "tool", "king"]) | values,
            "content": st.just(CANARY) | st.lists(st.fixed_dictionaries({"type": words, "text": values})) | values,
            "extra": values,
            "tool_call_id": values,
            **dict.fromkeys(ASSISTANT.fields, values),
        },
    ),
    max_size=3,
)
names = sorted({name for table in TABLES.values() for name in table.fields})
bodies = st.dictionaries(st.sampled_from(names) | st.text(max_size=5), values, max_size=6).flatmap(
    lambda some: st.fixed_dictionaries(
        {}, optional={"model": st.just("m"), "messages": messages, "prompt": st.just(CANARY) | values}
    ).map(lambda usual: {**some, **usual})
)


def outcome(work: Callable[[], T]) -> T | InvalidRequest:
    try:
        return work()
    except InvalidRequest as error:
        return error


def assert_clean(error: InvalidRequest, body: Fields) -> None:
    written = json.dumps(error.body())
    assert error.status in (400, 413)
    assert CANARY not in written or CANARY in (body.get("model"), *body)
    assert len(written) < 2000


@settings(max_examples=250, deadline=None)
@given(bodies, st.sampled_from([*Endpoint, None]), st.booleans())
@example({"model": "m", "prompt": "p", "temperature": 10**400}, None, False)
@example({"model": "m", "prompt": "p", "max_tokens": 10**400}, Endpoint.COMPLETION, False)
@example({"model": "m", "messages": TURNS, "tools": [{"function": {"name": CANARY}}]}, None, False)
def test_a_body_is_a_request_or_is_refused(body: Fields, endpoint: Endpoint | None, drop_unknown: bool) -> None:
    parsed = outcome(lambda: parse(parse_object(json.dumps(body)), endpoint, drop_unknown=drop_unknown))
    if isinstance(parsed, InvalidRequest):
        assert_clean(parsed, body)
        return
    request = parsed.request
    assert isinstance(request, Request)
    assert drop_unknown or not parsed.dropped
    assert request_from_json(request.to_json()) == request
    assert request.prompt_bytes() >= 0
    assert len(request.fingerprint()) == 64
    check_capabilities(request, EVERYTHING)
    assert unread_fields(request, EVERYTHING) == set()
    error = outcome(lambda: check_capabilities(request, set(Endpoint)))
    assert error is None or CANARY not in json.dumps(error.body())


@settings(max_examples=100, deadline=None)
@given(bodies, st.sampled_from(list(Endpoint)))
def test_what_the_gate_passes_on_passes_again(body: Fields, endpoint: Endpoint) -> None:
    """A body is read to the same body when it is read a second time: nothing is changed twice."""
    parsed = outcome(lambda: parse_request({**PLAIN[endpoint], **body}, endpoint))
    if isinstance(parsed, Request):
        assert parse_request({"model": "m", **parsed.body}, endpoint).body == parsed.body


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]":,0123456789eE+-.\\u dtrufalsn', max_size=60))
def test_what_looks_like_json_is_an_object_or_is_refused(raw: str) -> None:
    value = outcome(lambda: parse_object(raw))
    if isinstance(value, InvalidRequest):
        assert value.code in ("invalid_json", "request_too_large")
    else:
        assert parse_object(json.dumps(value)) == value


def in_message(fields: Fields) -> Fields:
    return {"model": "m", "messages": [TURNS[0], {**TURNS[1], **fields}, TURNS[2]]}


PLACES: list[tuple[FieldTable, Endpoint, Callable[[Fields], Fields], str]] = [
    (CHAT_TABLE, Endpoint.CHAT, lambda fields: {**PLAIN[Endpoint.CHAT], **fields}, ""),
    (COMPLETION_TABLE, Endpoint.COMPLETION, lambda fields: {**PLAIN[Endpoint.COMPLETION], **fields}, ""),
    (EMBEDDINGS_TABLE, Endpoint.EMBEDDINGS, lambda fields: {**PLAIN[Endpoint.EMBEDDINGS], **fields}, ""),
    (ASSISTANT, Endpoint.CHAT, in_message, "messages.1."),
]
places = st.sampled_from(PLACES)


def neutral_values(table: FieldTable) -> Iterator[tuple[str, Any]]:
    for name, field in table.fields.items():
        if not field.required and name != "content":
            yield from ((name, value) for value in (None, *field.neutral))


@pytest.mark.parametrize(("table", "endpoint", "body", "prefix"), PLACES)
def test_each_neutral_value_changes_nothing(table: FieldTable, endpoint: Endpoint, body: Any, prefix: str) -> None:
    plain = parse_request(body({}), endpoint)
    for name, value in neutral_values(table):
        assert parse_request(body({name: value}), endpoint) == plain, name
    nulls = {name: None for name, _ in neutral_values(table)}
    assert parse_request(body(nulls), endpoint).to_json() == plain.to_json()


@given(places, st.data())
def test_neutral_values_in_any_order(place: tuple[FieldTable, Endpoint, Any, str], data: st.DataObject) -> None:
    table, endpoint, body, _ = place
    some = data.draw(st.lists(st.sampled_from(list(neutral_values(table))), unique_by=lambda pair: pair[0]))
    mixed = dict(data.draw(st.permutations([*body(dict(some)).items()])))
    assert parse_request(mixed, endpoint) == parse_request(body({}), endpoint)


def rows(kind: Kind) -> list[tuple[Endpoint, Any, str, str, Field]]:
    return [
        (endpoint, body, prefix, name, field)
        for table, endpoint, body, prefix in PLACES
        for name, field in table.fields.items()
        if field.kind is kind
    ]


@settings(max_examples=300)
@given(st.sampled_from(rows(Kind.REFUSED)), values)
def test_each_other_value_of_a_refused_field_is_refused(row: tuple[Endpoint, Any, str, str, Field], value: Any) -> None:
    endpoint, body, prefix, name, field = row
    assume(not field.is_neutral(value))
    error = outcome(lambda: parse_request(body({name: value}), endpoint))
    assert isinstance(error, InvalidRequest)
    assert (error.status, error.param, error.code) == (400, prefix + name, "unsupported_parameter")
    assert f"`{prefix}{name}`" in error.message
    assert CANARY not in error.message
    assert "leave it out" in error.message
    for accepted in field.neutral:
        assert json.dumps(accepted) in error.message


@given(st.sampled_from(rows(Kind.LABEL)), values)
def test_a_label_changes_nothing_at_any_value(row: tuple[Endpoint, Any, str, str, Field], value: Any) -> None:
    endpoint, body, _, name, _ = row
    assert parse_request(body({name: value}), endpoint) == parse_request(body({}), endpoint)


@pytest.mark.parametrize(("name", "value"), [("n", True), ("store", 0), ("logprobs", 0), ("echo", 0), ("min_p", False)])
def test_a_boolean_is_not_a_number(name: str, value: Any) -> None:
    error = outcome(lambda: parse_request({**PLAIN[Endpoint.CHAT], name: value}))
    assert isinstance(error, InvalidRequest)
    assert error.param == name


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_an_assistants_message_without_content_has_the_empty_text(content: Fields) -> None:
    request = parse_request({"model": "m", "messages": [TURNS[0], {"role": "assistant", **content}, TURNS[2]]})
    assert request.body["messages"] == [TURNS[0], {"role": "assistant", "content": ""}, TURNS[2]]


MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_call_id", "refusal", "extra", "cache_control"]),
        words | edges | st.none() | st.just([]) | st.just("x" * 1_000_001),
        max_size=4,
    ).flatmap(
        lambda message: st.sampled_from(["user", "assistant", "tool", None]).map(lambda role: _as(role, message))
    ),
    min_size=1,
    max_size=3,
)


def _as(role: str | None, message: Fields) -> Fields:
    return message if role is None else {**message, "role": role}


@given(MESSAGES, st.booleans())
def test_a_message_of_plain_texts_is_read_as_field_by_field(turns: list[Fields], drop_unknown: bool) -> None:
    body = {"model": "m", "messages": turns}

    def read() -> Any:
        try:
            parsed = parse(body, Endpoint.CHAT, drop_unknown=drop_unknown)
            check_capabilities(parsed.request, {"chat"})
        except InvalidRequest as error:
            return str(error)
        return parsed, json.dumps(parsed.request.body)

    at_once = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Form, "is_plain", lambda *_: False)
        assert read() == at_once
