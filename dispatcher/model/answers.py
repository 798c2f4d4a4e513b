"""Makes OpenAI's answers, bodies and stream chunks, from the text and the token counts of a worker. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that all parts of one answer share. The methods make the parts."""

    id: str
    created: int
    model: str
    chat: bool

    @property
    def _id(self) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}"

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self.created, "model": self.model}

    def body(self, text: str, reason: str, input_tokens: int, output_tokens: int) -> dict[str, Any]:
        """Return the whole answer, not streamed."""
        part = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._fields(kind), "choices": [choice], "usage": usage(input_tokens, output_tokens)}

    def first_chunk(self) -> dict[str, Any] | None:
        """Return the chunk with the role, which opens a chat's stream. None for a completion."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self.chat else None

    def text_chunk(self, text: str) -> dict[str, Any]:
        return self._chunk({"delta": {"content": text}} if self.chat else {"text": text}, None)

    def last_chunk(self, reason: str) -> dict[str, Any]:
        return self._chunk({"delta": {}} if self.chat else {"text": ""}, reason)

    def usage_chunk(self, input_tokens: int, output_tokens: int) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._fields(kind), "choices": [], "usage": usage(input_tokens, output_tokens)}

    def _chunk(self, part: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason}
        return {**self._fields(kind), "choices": [choice]}


def usage(input_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


def event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"
"""A comment line: clients ignore it, and it keeps proxies from closing an idle connection."""
