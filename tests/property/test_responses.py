"""Any body of POST /v1/responses is translated or refused, and any stream of pieces adds up to the final response."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.fields.parse import parse
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, Token
from dispatcher.responses.answer import ResponseEvents, ResponseHead
from dispatcher.responses.items import ResponseRecord, decode, encode, listed
from dispatcher.responses.request import Asked, Places, chat_of, parse_asked, renamed

TYPES = (
    *("message", "function_call", "function_call_output", "reasoning", "input_text", "output_text", "input_image"),
    *("refusal", "reasoning_text", "summary_text", "function", "allowed_tools", "json_schema", "text", "computer_call"),
)
FIELDS = (
    *("type", "id", "role", "content", "text", "call_id", "name", "arguments", "output", "summary", "image_url"),
    *("refusal", "parameters", "schema", "mode", "tools", "format", "effort", "strict", "detail"),
)
WORDS = (*TYPES, "user", "assistant", "system", "auto", "required", "x", "", "data:image/png;base64,xx")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)
items = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional={name: json_values for name in FIELDS if name != "type"}
    | {"role": st.sampled_from(("user", "assistant"))},
)
bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "input": st.text(max_size=3) | st.lists(items, max_size=4) | json_values},
    optional={
        "tools": st.lists(items, max_size=2) | json_values,
        "tool_choice": items | json_values,
        "text": st.fixed_dictionaries({"format": items}) | json_values,
        "reasoning": json_values,
        "instructions": json_values,
        "include": json_values,
        "top_logprobs": json_values,
        "previous_response_id": st.none() | st.sampled_from(WORDS),
    },
)


def read(body: dict[str, Any]) -> Asked | InvalidRequest:
    places = Places()
    try:
        asked = parse_asked(body)
        with renamed(places):
            parse(chat_of(asked, [], asked.items, places), Endpoint.CHAT)
    except InvalidRequest as error:
        return error
    return asked


@given(bodies)
def test_a_body_is_translated_or_refused_by_a_field_of_its_own(body: dict[str, Any]) -> None:
    asked = read(body)
    if isinstance(asked, InvalidRequest):
        assert asked.param is not None
        assert asked.param.split(".")[0] in {*body, "input"}
        return
    record = ResponseRecord({"id": "resp_p-0", "output": []}, listed(asked.items, "p-0"))
    assert decode(encode(record)) == record
    again = {"model": "m", "input": record.items}
    assert parse_asked(again).items  # what is listed can be sent again


def call(index: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": text}}]}


texts = st.text("abé\n", min_size=1, max_size=3)
pieces = st.one_of(
    st.builds(lambda text: Token(text, 1), texts),
    st.builds(lambda text: Token("", 1, delta={"reasoning": text}), texts),
    st.builds(lambda text: Token("", 1, delta={"refusal": text}), texts),
    st.builds(lambda index, text: Token("", 1, delta=call(index, text)), st.integers(0, 2), texts),
    st.builds(lambda index, text: Token(text, 1, delta=call(index, text)), st.integers(0, 2), texts),
)


@given(st.lists(pieces, max_size=12), st.sampled_from(("stop", "length", "tool_calls")))
def test_the_deltas_add_up_to_the_final_response(tokens: list[Token], reason: str) -> None:
    asked = parse_asked({"model": "m", "input": "hi"})
    events = ResponseEvents(ResponseHead("p-0", 1, "m", asked))
    made = events.opening()
    for token in tokens:
        made += events.token(token)
    made += [*events.finish(Finished(reason, 1, 1)), *events.last()]
    assert [each["sequence_number"] for each in made] == list(range(len(made)))
    grown: dict[str, str] = {}
    done: list[dict[str, Any]] = []
    for each in made:
        if each["type"].endswith(".delta"):
            assert all(each["item_id"] != item["id"] for item in done), "a closed item grew"
            grown[each["item_id"]] = grown.get(each["item_id"], "") + each["delta"]
        elif each["type"] == "response.output_item.done":
            done.append(each["item"])
    output = events.final["output"]
    assert sorted(done, key=lambda item: item["id"]) == sorted(output, key=lambda item: item["id"])
    assert {item["id"]: text_of(item) for item in output if text_of(item)} == grown
    sent = "".join(token.text for token in tokens)
    assert (
        "".join(part["text"] for item in output for part in item.get("content", ()) if part["type"] == "output_text")
        == sent
    )


def text_of(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part.get("text", part.get("refusal", "")) for part in item["content"])
