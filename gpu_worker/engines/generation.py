"""Reads a request's body for an engine that generates itself: its input, and how to sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, WorkOrder


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate, and how. One of `prompt`, `prompt_ids` and `messages` is not None. `body` has the fields beside
    these."""

    prompt: str | None
    messages: list[dict[str, Any]] | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    body: Mapping[str, Any]
    prompt_ids: tuple[int, ...] | None = None
    """A prompt as token ids."""


def generation_of(request: WorkOrder) -> Generation:
    """Return the request's generation. Raises EngineError if it has no text to begin with."""
    body, is_chat = request.body, request.endpoint is Endpoint.CHAT
    prompt, messages = body.get("prompt"), body.get("messages")
    prompt_ids = None if is_chat else _token_ids(prompt)
    if not (bool(messages) and isinstance(messages, list) if is_chat else prompt_ids or isinstance(prompt, str)):
        raise EngineError("invalid_request", "this engine needs `messages`, or `prompt` as one text or as token ids")
    temperature, stop = body.get("temperature"), body.get("stop") or ()
    return Generation(
        None if is_chat or prompt_ids else prompt,
        [{**message, "content": _text(message.get("content"))} for message in messages or ()] if is_chat else None,
        1.0 if temperature is None else float(temperature),
        body.get("seed"),
        (stop,) if isinstance(stop, str) else tuple(stop),
        body,
        prompt_ids,
    )


def _token_ids(prompt: Any) -> tuple[int, ...] | None:
    """Return the token ids of a prompt, None if it is not a list of these."""
    is_ids = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
    return tuple(prompt) if is_ids else None


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of a message: of its only text, or of its text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)
