"""A field that the workers of a model do not support is refused by its name, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.fields.parse import check_capabilities, parse_request, unread_fields
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.fleet import TEXT, Capability
from dispatcher.model.requests import Endpoint
from tests.support.images import data_url, png

USER = {"role": "user", "content": "x"}
CHAT: dict[str, Any] = {"model": "m", "messages": [USER]}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(png(2, 2))}}]}

NEEDS: list[tuple[dict[str, Any], str, str]] = [
    ({"top_p": 0.5}, "sampling", "top_p"),
    ({"top_k": 5}, "sampling", "top_k"),
    ({"min_p": 0.1}, "sampling", "min_p"),
    ({"presence_penalty": 1}, "sampling", "presence_penalty"),
    ({"frequency_penalty": 1}, "sampling", "frequency_penalty"),
    ({"repetition_penalty": 1.1}, "sampling", "repetition_penalty"),
    ({"logit_bias": {"7": 1}}, "sampling", "logit_bias"),
    ({"n": 2}, "n", "n"),
    ({"logprobs": True}, "logprobs", "logprobs"),
    ({"tools": [TOOL]}, "tools", "tools"),
    ({"messages": [USER, CALL]}, "tools", "messages.1.tool_calls"),
    ({"messages": [USER, {"role": "tool", "tool_call_id": "c", "content": "x"}]}, "tools", "messages.1"),
    ({"messages": [USER, IMAGE]}, "images", "messages.1.content.0"),
    ({"response_format": {"type": "json_object"}}, "structured", "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
        "structured",
        "response_format",
    ),
    ({"response_format": {"type": "structural_tag", "format": {}}}, "vllm", "response_format"),
    ({"structured_outputs": {"regex": "a"}}, "vllm", "structured_outputs"),
    ({"reasoning_effort": "low"}, "reasoning", "reasoning_effort"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "vllm", "chat_template_kwargs"),
    ({"ignore_eos": True}, "length", "ignore_eos"),
    ({"ignore_eos": True}, "vllm", "ignore_eos"),
    ({"stop_token_ids": [1]}, "vllm", "stop_token_ids"),
]


@pytest.mark.parametrize(("fields", "capability", "param"), NEEDS)
def test_a_field_needs_its_capability(fields: dict[str, Any], capability: str, param: str) -> None:
    request = parse_request({**CHAT, **fields})
    check_capabilities(request, TEXT | {capability})
    with pytest.raises(InvalidRequest) as caught:
        check_capabilities(request, TEXT)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")
    assert "the model `m`" in caught.value.message
    assert f"`{capability}`" in caught.value.message


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (CHAT, Endpoint.CHAT),
        ({"model": "m", "prompt": "x"}, Endpoint.COMPLETION),
        ({"model": "m", "input": "x"}, Endpoint.EMBEDDINGS),
    ],
)
def test_an_endpoint_needs_its_capability(body: dict[str, Any], endpoint: Endpoint) -> None:
    request = parse_request(body)
    check_capabilities(request, {endpoint.value})
    others = {each.value for each in Endpoint} - {endpoint.value}
    with pytest.raises(InvalidRequest, match="does not serve /v1/") as caught:
        check_capabilities(request, others)
    assert caught.value.param == "model"


def test_a_prompt_of_token_ids_needs_its_capability() -> None:
    request = parse_request({"model": "m", "prompt": [1, 2]})
    some = {each.value for each in Endpoint}
    check_capabilities(request, some | {Capability.TOKEN_IDS})
    with pytest.raises(InvalidRequest, match="`vllm` or `token_ids`"):
        check_capabilities(request, some)
    check_capabilities(parse_request({"model": "m", "input": [[1], [2]]}), some)


USUAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def test_usual_values_are_for_the_workers_that_read_them() -> None:
    """vLLM takes a missing `repetition_penalty` from the model's generation_config.json, so 1.0 is not the same."""
    request = parse_request({**CHAT, **USUAL})
    check_capabilities(request, TEXT)
    assert unread_fields(request, TEXT) == set(USUAL)
    assert unread_fields(request, TEXT | {Capability.SAMPLING}) == set()


def test_plain_text_needs_nothing() -> None:
    fields = {"temperature": 0.5, "seed": 1, "stop": "x", "max_tokens": 3, "stream": True, "n": 1, "tools": []}
    request = parse_request({**CHAT, **fields})
    check_capabilities(request, TEXT)
    assert unread_fields(request, TEXT) == set()
