"""Each bounded field at its limit, which is accepted, and one beyond, which is refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterator
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


NAMES = "x" * limits.NAME_CHARS_MAX
Pair = tuple[Endpoint, str, Any, Any]
CHAT = {
    "messages": ([USER] * limits.MESSAGES_MAX, [USER] * (limits.MESSAGES_MAX + 1)),
    "messages.0.content": ([parts(limits.PARTS_MAX)], [parts(limits.PARTS_MAX + 1)]),
    "messages.0.tool_calls": ([called(limits.TOOL_CALLS_MAX)], [called(limits.TOOL_CALLS_MAX + 1)]),
    "messages.0.name": ([{**USER, "name": NAMES}], [{**USER, "name": NAMES + "x"}]),
    "tools": (tools(limits.TOOLS_MAX), tools(limits.TOOLS_MAX + 1)),
    "tools.0.function.name": ([tool(NAMES)], [tool(NAMES + "x")]),
    "tools.0.function.description": (
        [tool(description="x" * limits.DESCRIPTION_CHARS_MAX)],
        [tool(description="x" * (limits.DESCRIPTION_CHARS_MAX + 1))],
    ),
    "tools.0.function.parameters": (
        [tool(parameters=schema_of(limits.NODES_MAX))],
        [tool(parameters=schema_of(limits.NODES_MAX + 1))],
    ),
    "tools.5.function.parameters": (
        [tool(f"f{each}", parameters=schema_of(limits.ALL_NODES_MAX // 5)) for each in range(5)],
        [tool(f"f{each}", parameters=schema_of(limits.ALL_NODES_MAX // 5)) for each in range(6)],
    ),
    "response_format.json_schema.schema": (
        json_schema(deep(limits.DEPTH_MAX)),
        json_schema(deep(limits.DEPTH_MAX + 1)),
    ),
    "top_logprobs": (limits.LOGPROBS_MAX, limits.LOGPROBS_MAX + 1),
    "documents": (documents(limits.DOCUMENTS_MAX), documents(limits.DOCUMENTS_MAX + 1)),
    "chat_template_kwargs": ({f"x{each}": 1 for each in range(999)}, {f"x{each}": 1 for each in range(1000)}),
}
GENERATION = {
    "n": (limits.CHOICES_MAX, limits.CHOICES_MAX + 1),
    "stop": (["x"] * limits.STOPS_MAX, ["x"] * (limits.STOPS_MAX + 1)),
    "stop.0": (["x" * limits.STOP_CHARS_MAX], ["x" * (limits.STOP_CHARS_MAX + 1)]),
    "logit_bias": (
        {str(each): 1 for each in range(limits.TOKEN_IDS_MAX)},
        {str(each): 1 for each in range(limits.TOKEN_IDS_MAX + 1)},
    ),
    "response_format": ({"type": "json_object"}, {"type": "yaml"}),
    "structured_outputs.choice": (
        {"choice": ["x"] * limits.ALTERNATIVES_MAX},
        {"choice": ["x"] * (limits.ALTERNATIVES_MAX + 1)},
    ),
    "structured_outputs.grammar": (
        {"grammar": "x" * limits.GRAMMAR_CHARS_MAX},
        {"grammar": "x" * (limits.GRAMMAR_CHARS_MAX + 1)},
    ),
    "structured_outputs.regex": (
        {"regex": "x" * limits.PATTERN_CHARS_MAX},
        {"regex": "x" * (limits.PATTERN_CHARS_MAX + 1)},
    ),
    "structured_outputs": ({"json": {}}, 7),
    "stop_token_ids": ([limits.TOKEN_ID_MAX] * limits.TOKEN_IDS_MAX, [1] * (limits.TOKEN_IDS_MAX + 1)),
    "allowed_token_ids": ([1] * limits.TOKEN_IDS_MAX, [limits.TOKEN_ID_MAX + 1]),
    "logprob_token_ids": ([1] * limits.LOGPROBS_MAX, [1] * (limits.LOGPROBS_MAX + 1)),
    "bad_words": (["x"] * limits.BAD_WORDS_MAX, ["x"] * (limits.BAD_WORDS_MAX + 1)),
    "repetition_detection": ({"max_pattern_size": limits.TOKEN_IDS_MAX}, 7),
    "seed": (limits.SEED_MAX, limits.SEED_MAX + 1),
    "temperature": (2, 2.0000001),
    "top_p": (1e-9, 0),
    "min_tokens": (limits.TOKENS_MAX, limits.TOKENS_MAX + 1),
}
COMPLETION = {
    "prompt": ("x" * limits.TEXT_CHARS_MAX, "x" * (limits.TEXT_CHARS_MAX + 1)),
    "logprobs": (limits.LOGPROBS_MAX, limits.LOGPROBS_MAX + 1),
}
EMBEDDINGS = {
    "input": (["x"] * limits.INPUTS_MAX, ["x"] * (limits.INPUTS_MAX + 1)),
    "dimensions": (limits.DIMENSIONS_MAX, limits.DIMENSIONS_MAX + 1),
}
OF_ENDPOINT = {
    Endpoint.CHAT: {**CHAT, **GENERATION},
    Endpoint.COMPLETION: {**COMPLETION, **GENERATION},
    Endpoint.EMBEDDINGS: EMBEDDINGS,
}


def pairs() -> Iterator[Pair]:
    for endpoint, fields in OF_ENDPOINT.items():
        for place, (at_limit, beyond) in fields.items():
            yield endpoint, place, at_limit, beyond


def body(endpoint: Endpoint, place: str, value: Any) -> dict[str, Any]:
    name = place.partition(".")[0]
    more = {"logprobs": True} if endpoint is Endpoint.CHAT else {"logprobs": 1}
    more = more if name in ("top_logprobs", "logprob_token_ids") else {}
    return {"model": "m", endpoint.prompt_field: INPUTS[endpoint], **more, name: value}


@pytest.mark.parametrize(("endpoint", "place", "at_limit", "beyond"), list(pairs()), ids=lambda value: str(value)[:40])
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
