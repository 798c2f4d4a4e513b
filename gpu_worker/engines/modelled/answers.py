"""The answers of the modelled engine, token by token: words, a tool call, or JSON that is valid for a schema. Pure.

A placeholder token is a word of a text, or about BYTES_PER_TOKEN characters of JSON. Words go on until `max_tokens`. A
chat without this limit ends by itself, as a real model ends it: after three sentences, or after one that follows a
tool's result. A request for more tokens (`ignore_eos`, `min_tokens`) goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from gpu_worker.engines.interface import EngineError
from gpu_worker.engines.minimal_json.document import Unsatisfiable
from gpu_worker.engines.minimal_json.instance import minimal_instance
from gpu_worker.engines.modelled.tool_choice import tool_to_call

BYTES_PER_TOKEN = 4.0
WORDS = ("the", "water", "is", "shared", "by", "turn", "and", "each", "field", "has", "what", "it", "is", "due")
SENTENCES = 3


@dataclass(frozen=True, slots=True)
class ModelledToken:
    """One token. `delta`: fields of OpenAI's delta, for a token of a tool call."""

    text: str = ""
    delta: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelledAnswer:
    """`pieces`: all tokens of the answer; None for words without an end, of which the first is number `first_word`.
    `reason`: the reason of its end, if max_tokens does not cut it."""

    pieces: tuple[ModelledToken, ...] | None = None
    reason: str = "stop"
    first_word: int = 0

    def piece(self, number: int) -> ModelledToken:
        """Return token `number`, from 0."""
        if self.pieces is not None:
            return self.pieces[number]
        word = WORDS[(self.first_word + number) % len(WORDS)]
        return ModelledToken(f" {word}" if number else word)

    def tokens_max(self, max_tokens: int) -> int:
        """Return the number of tokens that the answer takes, at most `max_tokens`."""
        return max_tokens if self.pieces is None else min(max_tokens, len(self.pieces))

    def ends_with(self, number: int) -> bool:
        """Return whether token `number` is the last."""
        return self.pieces is not None and number + 1 >= len(self.pieces)


def chat_answers(body: Mapping[str, Any], request_id: str, choices: int, *, is_open: bool) -> list[ModelledAnswer]:
    """Return the answers to a chat. `is_open`: the client set no limit.

    Raises EngineError for a schema without a simple instance.
    """
    if (function := tool_to_call(body)) is not None:
        arguments = _arguments(function)
        return [_tool_call(function, arguments, _call_id(request_id, choice)) for choice in range(choices)]
    if (schema := _answer_schema(body)) is not None:
        return [_text(_json_of(schema, "the schema of `response_format`"))] * choices
    sentences = 1 if body["messages"][-1].get("role") == "tool" else SENTENCES if is_open else 0
    length = sentences * len(WORDS)
    return words(choices, 0 if body.get("ignore_eos") or body.get("min_tokens", 0) > length else length)


def words(choices: int, length: int = 0) -> list[ModelledAnswer]:
    """Return so many words for each choice; 0: words without an end. The choices of a request differ."""
    endless = [ModelledAnswer(first_word=choice) for choice in range(choices)]
    return [ModelledAnswer(tuple(map(each.piece, range(length)))) for each in endless] if length else endless


def _arguments(function: Mapping[str, Any]) -> str:
    what = f"the parameters of the function `{function['name'][:64]}`"
    return _json_of(function.get("parameters") or {}, what, {"type": "object"})


def _tool_call(function: Mapping[str, Any], arguments: str, call_id: str) -> ModelledAnswer:
    head = {"index": 0, "id": call_id, "type": "function", "function": {"name": function["name"], "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in _parts(arguments)]
    return ModelledAnswer(tuple(ModelledToken(delta={"tool_calls": [call]}) for call in (head, *rest)), "tool_calls")


def _answer_schema(body: Mapping[str, Any]) -> Any:
    """Return the schema of the answer, None if it is free text."""
    form = body.get("response_format") or {}
    if form.get("type") == "json_object":
        return {"type": "object"}
    if form.get("type") == "json_schema":
        return (form.get("json_schema") or {}).get("schema", {})
    return None


def _json_of(schema: Any, what: str, *also: Any) -> str:
    try:
        return json.dumps(minimal_instance(schema, *also))
    except Unsatisfiable as error:
        raise EngineError("invalid_request", f"this engine finds no value for {what}: {error}") from None


def _text(text: str) -> ModelledAnswer:
    return ModelledAnswer(tuple(ModelledToken(part) for part in _parts(text)))


def _parts(text: str) -> list[str]:
    size = int(BYTES_PER_TOKEN)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _call_id(request_id: str, choice: int) -> str:
    return "call_" + blake2b(f"{request_id}/{choice}".encode(), digest_size=12).hexdigest()
