"""Reads a request's body for an engine that generates itself: its input, and how to sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, EngineRequest


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate, and how. Either `prompt` or `messages` is not None. `body` has the fields beside these."""

    prompt: str | None
    messages: list[dict[str, Any]] | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    body: Mapping[str, Any]


def generation_of(request: EngineRequest) -> Generation:
    """Return the request's generation. Raises EngineError if it has no text to begin with."""
    body, is_chat = request.body, request.endpoint is Endpoint.CHAT
    prompt, messages = body.get("prompt"), body.get("messages")
    if not (isinstance(messages, list) if is_chat else isinstance(prompt, str)):
        raise EngineError("invalid_request", "this engine needs `messages`, or `prompt` as one text")
    temperature, stop = body.get("temperature"), body.get("stop") or ()
    return Generation(
        None if is_chat else prompt,
        [{**message, "content": _text(message.get("content"))} for message in messages or ()] if is_chat else None,
        1.0 if temperature is None else float(temperature),
        body.get("seed"),
        (stop,) if isinstance(stop, str) else tuple(stop),
        body,
    )


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of a message: of its only text, or of its text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)
