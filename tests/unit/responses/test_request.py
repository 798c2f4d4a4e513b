"""Requests for responses, translated to chats: every kind of item, tools, forms, and the places that errors name."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.fields.parse import parse
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint
from dispatcher.responses.request import Places, chat_of, parse_asked, renamed

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "7"}
CHAT_RESULT = {"role": "tool", "tool_call_id": "c", "content": "7"}
FETCHED = {"$ref": "http://x/schema"}
PICTURE = "data:image/png;base64,xxxx"


def chat(items: Any = "hi", earlier: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    asked = parse_asked({"model": "m", "input": items, **more})
    return chat_of(asked, earlier or [], asked.items, Places())


def checked(items: Any = "hi", **more: Any) -> Any:
    """The chat after its own table, and the errors that a caller gets."""
    asked, places = parse_asked({"model": "m", "input": items, **more}), Places()
    with renamed(places):
        return parse(chat_of(asked, [], asked.items, places), Endpoint.CHAT).request


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_a_text_is_a_users_message_and_instructions_come_first() -> None:
    messages = chat(instructions="be brief")["messages"]
    assert messages == [said("system", "be brief"), said("user", "hi")]


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([said("user", "a"), said("developer", "b")], [said("user", "a"), said("developer", "b")]),
        ([said("user", [{"type": "input_text", "text": "a"}])], [said("user", "a")]),
        (
            [said("user", [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PICTURE}])],
            [said("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PICTURE}}])],
        ),
        (
            [said("assistant", [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}])],
            [said("assistant", "ano")],
        ),
        ([CALL, RESULT], [{"role": "assistant", "tool_calls": [CHAT_CALL]}, CHAT_RESULT]),
        (
            [said("assistant", "a"), CALL, CALL, RESULT],
            [{**said("assistant", "a"), "tool_calls": [CHAT_CALL, CHAT_CALL]}, CHAT_RESULT],
        ),
        ([CALL, RESULT, CALL, RESULT], [{"role": "assistant", "tool_calls": [CHAT_CALL]}, CHAT_RESULT] * 2),
        ([said("assistant", "a"), said("assistant", "b")], [said("assistant", "a"), said("assistant", "b")]),
        ([CALL, said("assistant", "a")], [{"role": "assistant", "tool_calls": [CHAT_CALL]}, said("assistant", "a")]),
        (
            [{**RESULT, "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [{**CHAT_RESULT, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
    ],
)
def test_items_become_messages(items: list[Any], messages: list[Any]) -> None:
    assert chat(items)["messages"] == messages


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def test_reasoning_belongs_to_the_turn_after_it_and_alone_is_left_out() -> None:
    assert chat([thought("a"), thought("b"), said("assistant", "x"), CALL])["messages"] == [
        {**said("assistant", "x"), "reasoning": "ab", "tool_calls": [CHAT_CALL]}
    ]
    assert chat([said("user", "x"), thought("a"), said("user", "y")])["messages"] == [
        said("user", "x"),
        said("user", "y"),
    ]
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    assert chat([summed, CALL])["messages"][0]["reasoning"] == "s"


def test_earlier_items_come_between_the_instructions_and_the_input() -> None:
    earlier = [{"id": "msg_p-0_i0", "type": "message", **said("user", "first"), "status": "completed"}]
    messages = chat(earlier=earlier, instructions="new", previous_response_id="resp_p-0")["messages"]
    assert messages == [said("system", "new"), said("user", "first"), said("user", "hi")]


def test_tools_and_the_choice_among_them() -> None:
    assert chat(tools=[TOOL])["tools"] == [CHAT_TOOL]
    assert chat(tools=[TOOL], tool_choice="required")["tool_choice"] == "required"
    named = chat(tools=[TOOL], tool_choice={"type": "function", "name": "f"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    other = {**TOOL, "name": "g"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    some = chat(tools=[TOOL, other], tool_choice=allowed)
    assert (some["tools"], some["tool_choice"]) == ([CHAT_TOOL], "required")


def test_the_form_of_the_answer() -> None:
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    form = chat(text={"format": {"type": "json_schema", **schema}})["response_format"]
    assert form == {"type": "json_schema", "json_schema": schema}
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat(text={"format": {"type": "text"}})


def test_other_fields_keep_their_meaning() -> None:
    made = checked(
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low", "summary": "auto"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        metadata={"headgate_application": "a", "other": "x"},
        tools=[TOOL],
        parallel_tool_calls=False,
        user="u",
        stream=True,
    )
    assert (made.max_tokens, made.app, made.stream) == (5, "a", True)
    assert {name: value for name, value in made.body.items() if name not in ("messages", "tools")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "parallel_tool_calls": False,
    }


NEUTRAL: dict[str, Any] = {
    "background": False,
    "truncation": "disabled",
    "conversation": None,
    "prompt": None,
    "service_tier": "auto",
    "tool_choice": "auto",
    "tools": [],
    "include": [],
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": None, "summary": None},
    "metadata": {},
    "store": None,
    "stream_options": None,
    "parallel_tool_calls": True,
    "max_tool_calls": 3,
}


def test_neutral_fields_change_nothing() -> None:
    assert checked(**NEUTRAL) == checked()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools.0.type"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{**TOOL, "parameters": FETCHED}]}, "tools.0.parameters"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": FETCHED}}}, "text.format.schema"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"priority": 1}, "priority"),
        ({"nonsense": 1}, "nonsense"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": [{**CALL, "namespace": "n"}]}, "input.0.namespace"),
        ({"input": [said("user", "a"), said("critic", "b")]}, "input.1.role"),
        ({"input": [said("user", [{"type": "input_file", "file_id": "f"}])]}, "input.0.content.0.type"),
        ({"input": [said("user", [{"type": "input_image", "file_id": "f"}])]}, "input.0.content.0.file_id"),
        (
            {"input": [said("user", "a"), said("user", [{"type": "input_image", "image_url": "http://x/y.png"}])]},
            "input.1.content.0.image_url",
        ),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
    ],
)
def test_an_error_names_the_field_of_the_response(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked(**{"items": "hi", **{("items" if name == "input" else name): each for name, each in fields.items()}})
    assert refused.value.param == param
    assert param.removesuffix(".type") in refused.value.message
    assert "messages" not in refused.value.message


def test_a_reference_needs_no_type() -> None:
    assert parse_asked({"model": "m", "input": [{"id": "msg_p-0_1"}]}).items == [
        {"type": "item_reference", "id": "msg_p-0_1"}
    ]
