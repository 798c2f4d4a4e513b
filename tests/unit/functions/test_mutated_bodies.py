"""Valid bodies of every endpoint with some values replaced, removed or added: an answer or a refusal, never a 5xx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from dispatcher.model.fleet import Capability
from tests.support.images import data_url, png
from tests.support.world.memory_gate import Gate

BODIES_EACH = 150
FUNCTION = {"name": "f", "parameters": {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"enum": ["x"]}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
IMAGE = {"type": "image_url", "image_url": {"url": data_url(png(1, 1)), "detail": "low"}}
SCHEMA = {"anyOf": [{"type": "string", "pattern": "a{3}"}, {}]}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
            {"role": "assistant", "tool_calls": [CALL], "reasoning": "r"},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
        "logprobs": True,
        "top_logprobs": 3,
        "n": 2,
        "stop": ["a"],
        "temperature": 1,
        "logit_bias": {"1": 2},
        "max_tokens": 5,
        "seed": 1,
        "stop_token_ids": [1],
        "chat_template_kwargs": {"a": {"b": [1]}},
        "metadata": {"headgate_stage": "3", "a": "b"},
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "/v1/completions": {
        "model": "m",
        "prompt": "x",
        "max_tokens": 3,
        "stop": "a",
        "logprobs": 2,
        "echo": True,
        "top_p": 0.5,
        "response_format": {"type": "json_object"},
    },
    "/v1/embeddings": {
        "model": "m",
        "input": ["a", "b"],
        "dimensions": 3,
        "encoding_format": "base64",
        "user": "u",
        "truncate_prompt_tokens": -1,
    },
    "/v1/responses": {
        "model": "m",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "instructions": "i",
        "tool_choice": "auto",
        "reasoning": {"effort": "low"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 3,
        "truncation": "disabled",
    },
}
OTHERS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**70, -1.5, 1e308, "", "x", "\x00", "x" * 300, [], {}, [[]], [{}], [None]),
    *(
        {"type": "text"},
        {"type": []},
        {"role": {}},
        {"$ref": "#/a"},
        {"$ref": 5},
        {"enum": 5},
        {"patternProperties": []},
    ),
]
NAMES = ["x", "type", "role", "content", "name", "$ref", "anyOf", "id"]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all values below `value`."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*place, name)
        yield from places(child, (*place, name))


def mutated(body: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return a copy of the body with up to two changes."""
    body = deepcopy(body)
    for _ in range(random.randint(0, 2)):
        *path, name = random.choice([*places(body)])
        parent: Any = body
        for each in path:
            parent = parent[each]
        change = random.random()
        if change < 0.6:
            parent[name] = deepcopy(random.choice(OTHERS))
        elif change < 0.8:
            del parent[name]
        elif isinstance(parent, dict):
            parent[random.choice(NAMES)] = deepcopy(random.choice(OTHERS))
    return body


@pytest.mark.parametrize("path", VALID)
async def test_no_body_is_an_error_of_the_server(gate: Gate, path: str) -> None:
    gate.add_worker("w", capabilities=tuple(sorted(Capability)))
    random, statuses = Random(path), Counter[int]()
    for _ in range(BODIES_EACH):
        body = mutated(VALID[path], random)
        reply = await gate.caller().post(path, body)
        assert reply.status < 500, (reply.body, body)
        statuses[reply.status] += 1
    assert statuses[200] > 5
    assert statuses[400] > 5


@pytest.mark.parametrize("path", VALID)
async def test_the_bodies_are_valid_before_that(gate: Gate, path: str) -> None:
    gate.add_worker("w", capabilities=tuple(sorted(Capability)))
    assert (await gate.caller().post(path, VALID[path])).status == 200
