"""Neutral fields: each accepted value changes nothing, and each other value is refused by the field's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint
from dispatcher.neutral_fields import LABELS, MESSAGE, REQUEST, Accepted
from dispatcher.wire import parse_request

CANARY = "canary-58d0a2"
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"}]
PLAIN_CHAT: dict[str, Any] = {"model": "m", "messages": TURNS}
PLAIN_COMPLETION: dict[str, Any] = {"model": "m", "prompt": "once"}
Fields = dict[str, Any]


def in_chat(fields: Fields) -> Fields:
    return {**PLAIN_CHAT, **fields}


def in_completion(fields: Fields) -> Fields:
    return {**PLAIN_COMPLETION, **fields}


def in_message(fields: Fields) -> Fields:
    return {**PLAIN_CHAT, "messages": [TURNS[0], {**TURNS[1], **fields}, TURNS[2]]}


PLACES = [(REQUEST, in_chat, ""), (REQUEST, in_completion, ""), (MESSAGE, in_message, "messages.1.")]
places = st.sampled_from(PLACES)


def neutral_values(table: Accepted) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name in table for value in (None, *table[name]))


def endpoint_of(body: Fields) -> Endpoint:
    return Endpoint.CHAT if "messages" in body else Endpoint.COMPLETION


def refusal(body: Fields, endpoint: Endpoint) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body, endpoint=endpoint)
    assert CANARY not in json.dumps(caught.value.body())
    return caught.value


# What the issue names, written out: a line that is lost from a table fails here.
ISSUE_REQUEST: dict[str, list[Any]] = {
    "n": [None, 1],
    "best_of": [None, 1],
    "top_p": [None, 1, 1.0],
    "echo": [None, False],
    "suffix": [None, ""],
    "presence_penalty": [None, 0, 0.0],
    "frequency_penalty": [None, 0],
    "repetition_penalty": [None, 1, 1.0],
    "length_penalty": [None, 1],
    "min_p": [None, 0],
    "top_k": [None, -1, 0],
    "use_beam_search": [None, False],
    "logprobs": [None, False],
    "top_logprobs": [None, 0],
    "logit_bias": [None, {}],
    "store": [None, False],
    "tools": [None, []],
    "tool_choice": [None, "none", "auto"],
    "parallel_tool_calls": [None, True, False],
    "functions": [None, []],
    "function_call": [None, "none", "auto"],
    "metadata": [None, {}],
    "response_format": [None, {"type": "text"}],
    "modalities": [None, ["text"]],
    "prediction": [None],
    "reasoning_effort": [None],
    "service_tier": [None, "auto", "default"],
    "stream_options": [None, {}],
    "stop": [None, []],
    "seed": [None],
    "max_tokens": [None],
    "temperature": [None],
    "stream": [None, False],
    "user": [None, "u"],
    "safety_identifier": [None, "u"],
    "prompt_cache_key": [None, "k"],
}
ISSUE_MESSAGE: dict[str, list[Any]] = {
    "refusal": [None, ""],
    "tool_calls": [None, []],
    "annotations": [None, []],
    "name": [None],
    "function_call": [None, {}],
    "audio": [None, {}],
}


@pytest.mark.parametrize(("name", "values"), ISSUE_REQUEST.items())
def test_each_neutral_field_of_the_issue_is_accepted(name: str, values: list[Any]) -> None:
    for value in values:
        assert parse_request(in_chat({name: value}), endpoint=Endpoint.CHAT) == parse_request(PLAIN_CHAT)
        assert parse_request(in_completion({name: value}), endpoint=Endpoint.COMPLETION) == parse_request(
            PLAIN_COMPLETION
        )
        assert parse_request(in_chat({name: value})).endpoint is Endpoint.CHAT


@pytest.mark.parametrize(("name", "values"), ISSUE_MESSAGE.items())
def test_each_neutral_field_of_a_message_is_accepted(name: str, values: list[Any]) -> None:
    for value in values:
        assert parse_request(in_message({name: value})) == parse_request(PLAIN_CHAT)


@pytest.mark.parametrize(("table", "body", "prefix"), PLACES)
def test_all_neutral_values_together_change_nothing(table: Accepted, body: Any, prefix: str) -> None:
    plain = parse_request(body({}))
    for name, value in neutral_values(table):
        assert parse_request(body({name: value}), endpoint=plain.endpoint) == plain
    assert parse_request(body(dict.fromkeys(table)), endpoint=plain.endpoint).fingerprint() == plain.fingerprint()
    assert parse_request(body(dict.fromkeys(table)), endpoint=plain.endpoint).to_json() == plain.to_json()


@given(places, st.data())
def test_neutral_values_change_nothing_in_any_order(place: tuple[Accepted, Any, str], data: st.DataObject) -> None:
    table, body, _ = place
    some = data.draw(st.lists(st.sampled_from(list(neutral_values(table))), unique_by=lambda pair: pair[0]))
    plain = body({})
    mixed = dict(data.draw(st.permutations([*body(dict(some)).items()])))
    assert parse_request(mixed, endpoint=endpoint_of(plain)) == parse_request(plain)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(CANARY),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text"]), inner, max_size=2),
    max_leaves=4,
)
edges = st.sampled_from([0, 1, 2, -1, 1.5, "", "required", "priority", True, False, [], {}, [{}], ["audio"]])


@given(places, st.data(), json_values | edges)
def test_each_other_value_is_refused_by_name(place: tuple[Accepted, Any, str], data: st.DataObject, value: Any) -> None:
    table, body, prefix = place
    name = data.draw(st.sampled_from(sorted(table)))
    assume(not any(json.dumps(value) == json.dumps(each) for each in (None, *table[name])))
    assume(isinstance(value, bool) or not isinstance(value, (int, float)) or value not in table[name])
    error = refusal(body({name: value}), endpoint=endpoint_of(body({})))
    assert (error.status, error.param, error.code) == (400, prefix + name, "unsupported_parameter")
    assert f"`{prefix}{name}`" in error.message
    for accepted in (None, *table[name]):
        assert json.dumps(accepted) in error.message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("top_p", 0.5, "`top_p` is not supported at this value: leave it out or send null or 1."),
        ("tool_choice", "required",
         '`tool_choice` is not supported at this value: leave it out or send null or "none" or "auto".'),
        ("reasoning_effort", "high", "`reasoning_effort` is not supported at this value: leave it out or send null."),
    ],
)  # fmt: skip
def test_a_refusal_says_which_values_are_accepted(name: str, value: Any, message: str) -> None:
    assert refusal(in_chat({name: value}), endpoint=Endpoint.CHAT).message == message


@pytest.mark.parametrize(("name", "value"), [("n", True), ("store", 0), ("logprobs", 0), ("echo", 0), ("min_p", False)])
def test_a_boolean_is_not_a_number(name: str, value: Any) -> None:
    assert refusal(in_completion({name: value}), endpoint=Endpoint.COMPLETION).param == name


@pytest.mark.parametrize("value", [None, 0, "", [], {}, CANARY])
def test_an_unknown_field_is_refused_even_at_null(value: Any) -> None:
    for body, endpoint, param in (
        (in_chat({"surprise": value}), Endpoint.CHAT, "surprise"),
        (in_completion({"surprise": value}), Endpoint.COMPLETION, "surprise"),
        (in_message({"surprise": value}), Endpoint.CHAT, "messages.1.surprise"),
    ):
        error = refusal(body, endpoint=endpoint)
        assert (error.param, error.code) == (param, "unknown_parameter")


def test_where_the_body_tells_the_form_null_is_not_given() -> None:
    """A payload of lambda.invoke is a chat or a completion by its field; over HTTP the path tells the form."""
    assert parse_request(in_chat({"prompt": None})) == parse_request(PLAIN_CHAT)
    assert parse_request(in_completion({"messages": None})) == parse_request(PLAIN_COMPLETION)
    for fields in ({}, {"messages": None}, {"prompt": None}, {**PLAIN_CHAT, "prompt": "once"}):
        with pytest.raises(InvalidRequest, match="either `messages`"):
            parse_request({"model": "m", **fields})
    assert refusal(in_chat({"prompt": None}), endpoint=Endpoint.CHAT).code == "unknown_parameter"
    assert refusal(in_completion({"messages": None}), endpoint=Endpoint.COMPLETION).code == "unknown_parameter"


def test_tables_and_labels_are_apart() -> None:
    assert not LABELS & set(REQUEST)


class TestAssistant:
    """An assistant's message without content: the empty text, in its place among the turns."""

    @pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}])
    def test_without_content_is_empty(self, content: Fields) -> None:
        messages = [TURNS[0], {"role": "assistant", **content}, TURNS[2]]
        request = parse_request({"model": "m", "messages": messages})
        assert request.body["messages"] == [TURNS[0], {"role": "assistant", "content": ""}, TURNS[2]]

    @pytest.mark.parametrize("role", ["user", "system", "developer"])
    def test_another_role_needs_its_content(self, role: str) -> None:
        error = refusal({"model": "m", "messages": [{"role": role, "content": None}]}, endpoint=Endpoint.CHAT)
        assert (error.param, error.code) == ("messages.0.content", "invalid_value")

    def test_tool_calls_are_refused_though_the_content_is_null(self) -> None:
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": CANARY}]}
        error = refusal({"model": "m", "messages": [TURNS[0], message]}, endpoint=Endpoint.CHAT)
        assert (error.param, error.code) == ("messages.1.tool_calls", "unsupported_parameter")
