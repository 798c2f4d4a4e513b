"""A tenant's request after validation: one type for every endpoint. Pure.

The gate reads the fields that it needs, which are attributes here. All others are in `body` and reach the engine
unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

_NOT_IN_THE_FINGERPRINT = frozenset({"stream", "include_usage", "app", "stage", "interaction", "slo_class"})
_READ_BY_THE_MODEL = ("prompt", "messages", "input")
_SCHEMAS = ("tools", "functions", "response_format", "structured_outputs")
"""Fields with JSON that the engine adds to the prompt or compiles. They count with their names and punctuation."""
IMAGE_BYTES = 4096
"""An image counts as this many bytes of text: about a thousand tokens. The engine reports the true number."""
_TOKEN_ID_BYTES = 4


class Endpoint(StrEnum):
    """What a request asks for. /v1/responses is translated to a chat."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"

    @property
    def prompt_field(self) -> str:
        """The field of `body` that holds the input."""
        return {"chat": "messages", "completion": "prompt"}.get(self.value, "input")


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request.

    `body` holds the fields that the engine gets: the input (`messages`, `prompt` or `input`), and each field of OpenAI
    or vLLM that has another value than its neutral one. The fields that are attributes here are not in it.

    The client sets `app`, `stage`, `interaction` and `slo_class`. The first three affect only the order of its tenant's
    own requests, and throttling. An SLO class may be laxer than that of the tenant or the key, never stricter.
    """

    model: str
    endpoint: Endpoint
    body: Mapping[str, Any]
    max_tokens: int | None
    """The most output tokens of each choice; None: the gate's default."""
    choices: int = 1
    """OpenAI's `n`: the number of answers."""
    stream: bool = False
    include_usage: bool = False
    app: str = ""
    stage: int = 0
    interaction: str = ""
    slo_class: str = ""

    def prompt_bytes(self) -> int:
        """Return the UTF-8 bytes of all text that the model will read, tool schemas included, without the template."""
        read = sum(_text_bytes(self.body.get(name)) for name in _READ_BY_THE_MODEL)
        return read + sum(len(_json(self.body[name]).encode()) for name in _SCHEMAS if self.body.get(name))

    def longest_prompt_bytes(self) -> int:
        """Return the bytes that the model reads at once: of the longest input of a request for embeddings."""
        inputs = self.body.get("input")
        if self.endpoint is not Endpoint.EMBEDDINGS or not isinstance(inputs, list) or _is_token_ids(inputs):
            return self.prompt_bytes()
        return max(map(_text_bytes, inputs), default=0)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the fields that decide the answer. It is the same with and without streaming."""
        deciding = {name: value for name, value in self._fields().items() if name not in _NOT_IN_THE_FINGERPRINT}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        return _json(self._fields())

    def _fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def request_from_json(text: str) -> Request:
    """Decode the text of `Request.to_json`. An older version, without some of today's optional fields, may have written
    it."""
    raw: dict[str, Any] = json.loads(text)
    if "body" not in raw:
        raw = _before_pass_through(raw)
    known = {each.name: raw[each.name] for each in fields(Request) if each.name in raw}
    return Request(**{**known, "endpoint": Endpoint(raw["endpoint"])})


def _before_pass_through(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that was stored when the gate read every field of the body itself."""
    read = ("prompt", "messages", "temperature", "seed", "stop")
    body = {name: raw[name] for name in read if raw[name] not in (None, [])}
    return {**raw, "endpoint": Endpoint.CHAT if raw["chat"] else Endpoint.COMPLETION, "body": body}


def _is_token_ids(inputs: list[Any]) -> bool:
    return bool(inputs) and isinstance(inputs[0], int)


def _text_bytes(value: Any) -> int:
    """Return the UTF-8 bytes of all texts in a JSON value, with IMAGE_BYTES for an image and 4 for a token's id."""
    kind = type(value)
    if kind is str:
        return len(value) if value.isascii() else len(value.encode())
    if kind is dict:
        return IMAGE_BYTES if "image_url" in value else sum(map(_text_bytes, value.values()))
    if kind is list:
        return sum(map(_text_bytes, value))
    return _TOKEN_ID_BYTES if kind is int else 0


def _json(value: Any) -> str:
    # Without ensure_ascii: the store limits the bytes, and an escape turns two bytes into six.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
