"""Each bounded field at its limit, which is accepted, and one beyond, which is refused by the field's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.fields import limits
from dispatcher.fields.kinds import Kind
from dispatcher.fields.parse import parse_request
from dispatcher.fields.tables import TABLES
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint

USER = {"role": "user", "content": "x"}
INPUTS: dict[Endpoint, Any] = {Endpoint.CHAT: [USER], Endpoint.COMPLETION: "x", Endpoint.EMBEDDINGS: "x"}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def tools(number: int) -> list[dict[str, Any]]:
    return [tool(f"f{each}") for each in range(number)]


def called(number: int) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "tool_calls": [call] * number}


def parts(number: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "x"}] * number}


def schema_of(number: int) -> dict[str, Any]:
    """Return a schema with this number of values."""
    return {"properties": {f"p{each}": True for each in range(number - 2)}}


def deep(levels: int) -> dict[str, Any]:
    """Return a schema with this number of levels."""
    found: Any = True
    for _ in range(levels - 1):
        found = {"not": found}
    return {"not": found}


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def documents(number: int) -> list[dict[str, str]]:
    return [{"text": "x"}] * number


def around(make: Callable[[int], Any], most: int) -> tuple[Any, Any]:
    """Return the value of the largest size, and one of a size beyond."""
    return make(most), make(most + 1)


def text(size: int) -> str:
    return "x" * size


def texts(size: int) -> list[str]:
    return ["x"] * size


def five_tools(size: int) -> list[dict[str, Any]]:
    return [tool(f"f{each}", parameters=schema_of(limits.ALL_NODES_MAX // 5)) for each in range(size)]


CHAT = {
    "messages": around(lambda size: [USER] * size, limits.MESSAGES_MAX),
    "messages.0.content": around(lambda size: [parts(size)], limits.PARTS_MAX),
    "messages.0.tool_calls": around(lambda size: [called(size)], limits.TOOL_CALLS_MAX),
    "messages.0.name": around(lambda size: [{**USER, "name": text(size)}], limits.NAME_CHARS_MAX),
    "tools": around(tools, limits.TOOLS_MAX),
    "tools.0.function.name": around(lambda size: [tool(text(size))], limits.NAME_CHARS_MAX),
    "tools.0.function.description": around(lambda size: [tool(description=text(size))], limits.DESCRIPTION_CHARS_MAX),
    "tools.0.function.parameters": around(lambda size: [tool(parameters=schema_of(size))], limits.NODES_MAX),
    "tools.5.function.parameters": around(five_tools, 5),
    "response_format.json_schema.schema": around(lambda size: json_schema(deep(size)), limits.DEPTH_MAX),
    "top_logprobs": around(int, limits.LOGPROBS_MAX),
    "documents": around(documents, limits.DOCUMENTS_MAX),
    "chat_template_kwargs": around(lambda size: {f"x{each}": 1 for each in range(size)}, 999),
}
GENERATION = {
    "n": around(int, limits.CHOICES_MAX),
    "stop": around(texts, limits.STOPS_MAX),
    "stop.0": around(lambda size: [text(size)], limits.STOP_CHARS_MAX),
    "logit_bias": around(lambda size: {str(each): 1 for each in range(size)}, limits.TOKEN_IDS_MAX),
    "response_format": ({"type": "json_object"}, {"type": "yaml"}),
    "structured_outputs.choice": around(lambda size: {"choice": texts(size)}, limits.ALTERNATIVES_MAX),
    "structured_outputs.grammar": around(lambda size: {"grammar": text(size)}, limits.GRAMMAR_CHARS_MAX),
    "structured_outputs.regex": around(lambda size: {"regex": text(size)}, limits.PATTERN_CHARS_MAX),
    "structured_outputs": ({"json": {}}, 7),
    "stop_token_ids": around(lambda size: [limits.TOKEN_ID_MAX] * size, limits.TOKEN_IDS_MAX),
    "allowed_token_ids": ([1] * limits.TOKEN_IDS_MAX, [limits.TOKEN_ID_MAX + 1]),
    "logprob_token_ids": around(lambda size: [1] * size, limits.LOGPROBS_MAX),
    "bad_words": around(texts, limits.BAD_WORDS_MAX),
    "repetition_detection": ({"max_pattern_size": limits.TOKEN_IDS_MAX}, 7),
    "seed": around(int, limits.SEED_MAX),
    "temperature": (2, 2.0000001),
    "top_p": (1e-9, 0),
    "min_tokens": around(int, limits.TOKENS_MAX),
}
COMPLETION = {"prompt": around(text, limits.TEXT_CHARS_MAX), "logprobs": around(int, limits.LOGPROBS_MAX)}
EMBEDDINGS = {"input": around(texts, limits.INPUTS_MAX), "dimensions": around(int, limits.DIMENSIONS_MAX)}
OF_ENDPOINT = {
    Endpoint.CHAT: {**CHAT, **GENERATION},
    Endpoint.COMPLETION: {**COMPLETION, **GENERATION},
    Endpoint.EMBEDDINGS: EMBEDDINGS,
}


PAIRS = [(endpoint, place, *pair) for endpoint, fields in OF_ENDPOINT.items() for place, pair in fields.items()]


def body(endpoint: Endpoint, place: str, value: Any) -> dict[str, Any]:
    name = place.partition(".")[0]
    more = {"logprobs": True} if endpoint is Endpoint.CHAT else {"logprobs": 1}
    more = more if name in ("top_logprobs", "logprob_token_ids") else {}
    return {"model": "m", endpoint.prompt_field: INPUTS[endpoint], **more, name: value}


@pytest.mark.parametrize(("endpoint", "place", "at_limit", "beyond"), PAIRS, ids=lambda value: str(value)[:40])
def test_a_field_at_its_limit_and_beyond(endpoint: Endpoint, place: str, at_limit: Any, beyond: Any) -> None:
    parse_request(body(endpoint, place, at_limit), endpoint)
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body(endpoint, place, beyond), endpoint)
    assert (caught.value.param or "").startswith(place)
    assert len(caught.value.message) < 1_000


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_each_bounded_field_has_its_pair(endpoint: Endpoint) -> None:
    tried = {place.partition(".")[0] for place in OF_ENDPOINT[endpoint]}
    assert TABLES[endpoint].names(Kind.BOUNDED) - tried == set()


def test_a_prompt_of_token_ids_at_its_limit_and_beyond() -> None:
    for name in ("prompt", "input"):
        parse_request({"model": "m", name: [1] * limits.PROMPT_TOKENS_MAX})
        with pytest.raises(InvalidRequest):
            parse_request({"model": "m", name: [1] * (limits.PROMPT_TOKENS_MAX + 1)})
