"""What the tenant client gives back: answers, the outcome of an invocation, and errors that openai has no class for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai


class HeadgateClientError(openai.OpenAIError):
    """A wrong setting, a body that is not the service's, a broken stream, or the error of an Outcome.

    `code`: the service's stable name of an outcome's error, else the client's own. `param`: the wrong setting.
    """

    def __init__(self, message: str, *, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Answer:
    """`raw`: OpenAI's body. `queue_position`: on arrival; None if the request did not wait. `estimated_wait_ms`,
    `estimated_wait_p90_ms`: the 50 % and the 90 % point of the wait; None also if the service knew none."""

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    id: str
    raw: Mapping[str, Any]
    queue_position: int | None = None
    estimated_wait_ms: int | None = None
    estimated_wait_p90_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """State of an invocation. `status` is queued, running, done, failed or expired."""

    id: str
    status: str
    answer: Answer | None
    error: HeadgateClientError | None


def json_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; {} if the content is anything else, such as a proxy's page."""
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def answer_from(body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    """Read OpenAI's body, of a chat or a completion. Raises HeadgateClientError for any other body."""
    try:
        choice, usage = body["choices"][0], body["usage"]
        return Answer(
            text=choice["message"]["content"] if "message" in choice else choice["text"],
            finish_reason=choice["finish_reason"],
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            id=body["id"],
            raw=body,
            queue_position=_count(headers.get("x-headgate-queue-position")),
            estimated_wait_ms=_count(headers.get("x-headgate-estimated-wait-ms")),
            estimated_wait_p90_ms=_count(headers.get("x-headgate-estimated-wait-p90-ms")),
        )
    except (LookupError, TypeError):
        raise unknown_answer() from None


def only_model(models: Sequence[str]) -> str:
    """Return the model if there is exactly one. Raises HeadgateClientError."""
    if len(models) != 1:
        raise HeadgateClientError(
            f"name a model: {', '.join(models) or 'the service has none at the moment'}", param="model"
        )
    return models[0]


def models_from(body: Mapping[str, Any]) -> list[str]:
    """Read a list of models. Raises HeadgateClientError for any other body."""
    try:
        return [str(model["id"]) for model in body["data"]]
    except (LookupError, TypeError):
        raise unknown_answer() from None


def piece_of(chunk: Any) -> tuple[str, bool]:
    """Return the text of a stream's chunk, and whether it is the last text. Raises HeadgateClientError."""
    try:
        if not chunk.choices:  # the chunk with the usage
            return "", False
        choice = chunk.choices[0]
        text = choice.delta.content if hasattr(choice, "delta") else choice.text
        return text or "", choice.finish_reason is not None
    except (AttributeError, LookupError, TypeError):
        raise unknown_answer() from None


def check_whole(is_whole: bool) -> None:
    """Raise HeadgateClientError for a stream without a last text: openai ends such a stream like a whole one."""
    if not is_whole:
        raise HeadgateClientError("the stream broke off before its end", code="stream_broken")


def unknown_answer() -> HeadgateClientError:
    return HeadgateClientError("the answer is not headgate's: check the address of the service", code="unknown_answer")


def _count(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() else None
