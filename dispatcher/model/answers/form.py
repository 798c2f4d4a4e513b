"""Makes OpenAI's answers, bodies and stream chunks, from the events and the token counts of a worker. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, Token

_PREFIX = {Endpoint.CHAT: "chatcmpl", Endpoint.COMPLETION: "cmpl", Endpoint.EMBEDDINGS: "embd"}


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that all parts of one answer share. The methods make the parts."""

    id: str
    created: int
    model: str
    endpoint: Endpoint

    @property
    def _is_chat(self) -> bool:
        return self.endpoint is Endpoint.CHAT

    def _fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{_PREFIX[self.endpoint]}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def body(self, choices: Sequence[Mapping[str, Any]], finished: Finished) -> dict[str, Any]:
        """Return the whole answer, not streamed. `choices` are as in collected.py."""
        if self.endpoint is Endpoint.EMBEDDINGS:
            return self._embeddings(choices, finished.input_tokens)
        whole = [self._whole(index, choice) for index, choice in enumerate(choices)]
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._fields(kind), "choices": whole, "usage": usage(finished)}

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """Return the chunks with the role, which open a chat's stream. None for a completion."""
        if not self._is_chat:
            return []
        return [self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) for index in range(choices)]

    def chunk(self, token: Token) -> dict[str, Any]:
        """Return the chunk of one piece of the answer."""
        if not self._is_chat:
            return self._chunk(token.choice, {"text": token.text}, token.logprobs)
        text = {"content": token.text} if token.text or not token.delta else {}
        return self._chunk(token.choice, {"delta": {**text, **(token.delta or {})}}, token.logprobs)

    def last_chunks(self, finished: Finished) -> list[dict[str, Any]]:
        """Return the chunk that ends each choice."""
        reasons = finished.reasons or (finished.reason,)
        part: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
        return [self._chunk(index, part, None, reason) for index, reason in enumerate(reasons)]

    def usage_chunk(self, finished: Finished) -> dict[str, Any]:
        return {**self._fields(self._chunk_kind), "choices": [], "usage": usage(finished)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"

    def _chunk(
        self,
        index: int,
        part: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, **part, "logprobs": logprobs, "finish_reason": reason}
        return {**self._fields(self._chunk_kind), "choices": [choice]}

    def _whole(self, index: int, choice: Mapping[str, Any]) -> dict[str, Any]:
        part = {"message": _message(choice)} if self._is_chat else {"text": choice["text"]}
        return {"index": index, **part, "logprobs": choice.get("logprobs"), "finish_reason": choice["reason"]}

    def _embeddings(self, choices: Sequence[Mapping[str, Any]], input_tokens: int) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": index, "embedding": choice["delta"]["embedding"]}
            for index, choice in enumerate(choices)
        ]
        spent = {"prompt_tokens": input_tokens, "total_tokens": input_tokens}
        return {"object": "list", "data": data, "model": self.model, "usage": spent}


def _message(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a whole chat choice. Beside tool calls, an empty text is null, as OpenAI's API has it."""
    delta = dict(choice.get("delta") or {})
    content = choice["text"] or (None if delta.get("tool_calls") else "")
    if delta.get("tool_calls"):
        delta["tool_calls"] = [
            {name: value for name, value in call.items() if name != "index"} for call in delta["tool_calls"]
        ]
    return {"role": "assistant", "content": content, "refusal": None, **delta}


def usage(finished: Finished) -> dict[str, Any]:
    """Return the counts in OpenAI's form. The details are there if the engine counted some."""
    spent: dict[str, Any] = {
        "prompt_tokens": finished.input_tokens,
        "completion_tokens": finished.output_tokens,
        "total_tokens": finished.input_tokens + finished.output_tokens,
    }
    if finished.cached_tokens:
        spent["prompt_tokens_details"] = {"cached_tokens": finished.cached_tokens}
    if finished.reasoning_tokens:
        spent["completion_tokens_details"] = {"reasoning_tokens": finished.reasoning_tokens}
    return spent


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + _ENCODER.encode(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"
"""A comment line: clients ignore it, and it keeps proxies from closing an idle connection."""
