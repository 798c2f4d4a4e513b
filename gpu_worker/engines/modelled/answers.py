"""The answers of the modelled engine: words, a tool call, JSON that is valid for a schema, or embeddings. Pure.

A placeholder token is a word of a text, or about BYTES_PER_TOKEN characters of JSON. Words go on until `max_tokens`. A
chat without this limit ends by itself, as a real model ends it: after three sentences, or after one that follows a
tool's result. A request for more tokens (`ignore_eos`, `min_tokens`) goes on.

The tool that is called:

| tool_choice | the last message is the user's | the last message is another |
| --- | --- | --- |
| none, or no tools | text | text |
| auto | the first tool | text |
| required | the first tool | the first tool that is not called since the user's message, else the last |
| a function's name | this function | this function |

After a tool's result, `required` goes on to the next tool, so that an agent that must call a tool for its final answer
comes to this tool.

Embeddings are unit vectors from a hash of the input. Equal inputs have equal vectors, different inputs have unrelated
ones. A shorter vector is the beginning of a longer one, scaled to length 1, as OpenAI's `dimensions` shortens them.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, shake_128
from math import hypot
from typing import Any

from gpu_worker.engines.interface import EngineError
from gpu_worker.engines.minimal_json.instance import minimal_instance
from gpu_worker.engines.minimal_json.schema import Unsatisfiable

Function = Mapping[str, Any]


def tool_to_call(body: Mapping[str, Any]) -> Function | None:
    """Return the function to call: its `name` and `parameters`. None if the answer is text.

    Raises EngineError for a tool or a choice that is not understood.
    """
    mode, names = _choice(body.get("tool_choice") or "auto")
    tools = body.get("tools") or []
    if mode == "none" or (mode == "auto" and not tools):
        return None
    functions = [_function(tool) for tool in tools]
    allowed = [each for each in functions if names is None or each["name"] in names]
    if not allowed:
        raise _invalid("`tool_choice` names no function of `tools`")
    messages = body.get("messages") or []
    asked = bool(messages) and messages[-1].get("role") == "user"
    if mode == "auto" and not asked:
        return None
    if asked or len(allowed) == 1:
        return allowed[0]
    called = _called_functions(messages)
    return next((each for each in allowed if each["name"] not in called), allowed[-1])


def _choice(choice: Any) -> tuple[str, set[Any] | None]:
    """Return the mode, and the names of the allowed functions; None if all are allowed."""
    if choice in ("none", "auto", "required"):
        return str(choice), None
    try:
        if choice["type"] == "function":
            return "required", {choice["function"]["name"]}
        if choice["type"] == "allowed_tools":
            allowed = choice["allowed_tools"]
            return str(allowed["mode"]), {tool["function"]["name"] for tool in allowed["tools"]}
    except (KeyError, TypeError):
        pass
    raise _invalid("`tool_choice` is none, auto, required, or the name of a function")


def _function(tool: Any) -> Function:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _invalid("this engine calls only tools of the type function, which have a name")
    return function


def _called_functions(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of the functions that were called since the user's last message."""
    names: set[str] = set()
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        for call in message.get("tool_calls") or ():
            names.add(str((call.get("function") or {}).get("name")))
    return names


def _invalid(message: str) -> EngineError:
    return EngineError("invalid_request", message)


_DIMENSIONS = 256
_DIMENSIONS_MAX = 4_096
_BYTES = 4
"""Bytes of the hash for one component, and of a float in base64."""


def inputs_of(body: Mapping[str, Any]) -> list[bytes]:
    """Return the inputs: texts, or token ids as bytes of the same count. Raises EngineError for another form."""
    given = body.get("input")
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    return [_input(each) for each in several]


def _input(given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode("utf-8", "replace")
    if isinstance(given, list) and all(isinstance(token, int) and abs(token) < 2**31 for token in given):
        return struct.pack(f"<{len(given)}i", *given)  # four bytes: one token of the modelled engine
    raise EngineError("invalid_request", "`input` must be a text, token ids, or a list of these")


def check_dimensions(body: Mapping[str, Any]) -> int:
    """Return the number of dimensions. Raises EngineError for a number that is too large."""
    dimensions: int = body.get("dimensions") or _DIMENSIONS
    if not 1 <= dimensions <= _DIMENSIONS_MAX:
        raise EngineError("invalid_request", f"`dimensions` must be from 1 to {_DIMENSIONS_MAX}")
    return dimensions


def embedding(model: str, content: bytes, body: Mapping[str, Any]) -> list[float] | str:
    """Return the vector in the form of `encoding_format`."""
    dimensions = check_dimensions(body)
    vector = unit_vector(model.encode() + b"\0" + content, dimensions)
    if body.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()


def unit_vector(content: bytes, dimensions: int) -> list[float]:
    """Return a vector of length 1. Its components are odd numbers before the scaling, so it is never zero."""
    bits = struct.unpack(f"<{dimensions}i", shake_128(content).digest(dimensions * _BYTES))
    length = hypot(*(each | 1 for each in bits))
    return [(each | 1) / length for each in bits]


BYTES_PER_TOKEN = 4.0
WORDS = ("the", "water", "is", "shared", "by", "turn", "and", "each", "field", "has", "what", "it", "is", "due")
_SENTENCES = 3


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
    sentences = 1 if body["messages"][-1].get("role") == "tool" else _SENTENCES if is_open else 0
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
