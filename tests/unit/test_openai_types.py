"""The openai SDK's own types against the wire: each optional field may be null, and each answer can be sent back."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

import pytest

from dispatcher.fields.parse import parse_request
from dispatcher.model.answers import AnswerHead
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished

pytest.importorskip("openai")
USER = {"role": "user", "content": "hello"}

CHAT = {"model": "m", "messages": [USER]}
COMPLETION = {"model": "m", "prompt": "hello"}
ROLES = ("system", "developer", "user", "assistant")


def optional_fields(module: str, name: str) -> list[str]:
    typed: Any = getattr(import_module(f"openai.types.{module}"), name)
    return [field for field in get_type_hints(typed) if field not in ("model", "messages", "prompt", "role")]


@pytest.mark.parametrize("field", optional_fields("chat.completion_create_params", "CompletionCreateParamsStreaming"))
def test_each_optional_field_of_a_chat_may_be_null(field: str) -> None:
    assert parse_request({**CHAT, field: None}, endpoint=Endpoint.CHAT) == parse_request(CHAT)


@pytest.mark.parametrize("field", optional_fields("completion_create_params", "CompletionCreateParamsStreaming"))
def test_each_optional_field_of_a_completion_may_be_null(field: str) -> None:
    assert parse_request({**COMPLETION, field: None}, endpoint=Endpoint.COMPLETION) == parse_request(COMPLETION)


@pytest.mark.parametrize("role", ROLES)
def test_each_optional_field_of_a_message_may_be_null(role: str) -> None:
    named = f"ChatCompletion{role.title()}MessageParam"
    fields = optional_fields(f"chat.chat_completion_{role}_message_param", named)
    assert "name" in fields
    plain = {"role": role, "content": "x"}
    for field in set(fields) - {"content"}:
        asked = parse_request({**CHAT, "messages": [{**plain, field: None}]})
        assert asked == parse_request({**CHAT, "messages": [plain]})


def as_the_sdk_sends_it(message: Any) -> Any:
    """The SDK writes the fields that are set, as JSON."""
    return message.model_dump(mode="json", exclude_unset=True)


FORMS: list[Callable[[Any], Any]] = [
    as_the_sdk_sends_it,
    lambda message: message.model_dump(),
    lambda message: message.model_dump(exclude_none=True),
    lambda message: message.to_dict(),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["ChatCompletion", "ParsedChatCompletion"])
def test_an_answers_message_is_a_message_of_the_next_turn(form: Callable[[Any], Any], kind: str) -> None:
    model = getattr(import_module("openai.types.chat"), kind)
    head = AnswerHead("i-1", 7, "m", Endpoint.CHAT)
    message = (
        model.model_validate(head.body([{"text": "hi there", "reason": "stop"}], Finished("stop", 3, 2)))
        .choices[0]
        .message
    )
    request = parse_request({**CHAT, "messages": [USER, form(message), USER]})
    assert request.body["messages"] == [USER, {"role": "assistant", "content": "hi there"}, USER]


@pytest.mark.parametrize("form", FORMS)
def test_a_streams_delta_is_a_message_of_the_next_turn(form: Callable[[Any], Any]) -> None:
    chat: Any = import_module("openai.types.chat")
    chunk = AnswerHead("i-1", 7, "m", Endpoint.CHAT).opening(1)[0]
    delta = chat.ChatCompletionChunk.model_validate(chunk).choices[0].delta
    delta.content += "hi"
    request = parse_request({**CHAT, "messages": [USER, form(delta)]})
    assert request.body["messages"] == [USER, {"role": "assistant", "content": "hi"}]
