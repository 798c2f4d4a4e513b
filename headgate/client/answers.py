"""What the tenant client gets back: answers, outcomes, and one tree of errors.

HeadgateClientError
├── BadRequest         400, 413: `param` names the field; also what cannot be sent at all
├── Unauthorized       401
├── NotFound           404
├── Conflict           409: an idempotency key used before with another body
├── Refused            429: `retry_after_s` says when to come back
├── Unavailable        5xx, faults of the function, answers that are none, streams that break off
└── Unreachable        no answer at all
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx


class HeadgateClientError(Exception):
    """`code` is the service's stable word for it; `status` as HTTP has it, 0 where there was no answer."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int = 0,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.param = param
        self.retry_after_s = retry_after_s


class BadRequest(HeadgateClientError):
    pass


class Unauthorized(HeadgateClientError):
    pass


class NotFound(HeadgateClientError):
    pass


class Conflict(HeadgateClientError):
    pass


class Refused(HeadgateClientError):
    pass


class Unavailable(HeadgateClientError):
    pass


class Unreachable(HeadgateClientError):
    pass


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    id: str
    raw: Mapping[str, Any]
    """OpenAI's body, whole."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an invocation: `status` is queued, running, done, failed or expired."""

    id: str
    status: str
    answer: Answer | None
    error: HeadgateClientError | None


def answer_from(body: Mapping[str, Any]) -> Answer:
    """OpenAI's body, chat or completion. Raises Unavailable where it is something else, such as a proxy's page."""
    try:
        choice, spent = body["choices"][0], body["usage"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        counts = spent["prompt_tokens"], spent["completion_tokens"]
        return Answer(text, choice["finish_reason"], *counts, id=body["id"], raw=body)
    except (LookupError, TypeError):
        raise not_ours() from None


def models_from(body: Mapping[str, Any]) -> list[str]:
    """Raises Unavailable where it is no list of models."""
    try:
        return [str(model["id"]) for model in body["data"]]
    except (LookupError, TypeError):
        raise not_ours() from None


def not_ours() -> HeadgateClientError:
    return Unavailable("the answer is not what this service gives; is the address right?", code="unknown_answer")


def broken_off() -> HeadgateClientError:
    return Unavailable("the stream broke off before its end", code="stream_broken")


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """Raises BadRequest for what JSON has no words for: NaN, half a character, an object of one's own."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise BadRequest("the request has text in it that is not Unicode") from None
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the request cannot be written as JSON: {error}") from None


def error_from(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> HeadgateClientError:
    """The error that an OpenAI error object stands for."""
    told = body.get("error")
    told = told if isinstance(told, dict) else {"message": str(told or "")}
    kinds = {400: BadRequest, 401: Unauthorized, 404: NotFound, 409: Conflict, 413: BadRequest, 429: Refused}
    return kinds.get(status, Unavailable if status >= 500 else BadRequest)(
        told.get("message") or f"the service answered {status}",
        code=told.get("code") or "",
        status=status,
        param=told.get("param"),
        retry_after_s=_seconds(body.get("retry_after_s") or headers.get("retry-after")),
    )


def error_within(body: Mapping[str, Any]) -> HeadgateClientError:
    """The error in a stream or an outcome, which has no status of its own."""
    told = body.get("error")
    kind = told.get("type") if isinstance(told, dict) else None
    return error_from({"rate_limit_error": 429, "invalid_request_error": 400}.get(str(kind), 500), body, {})


def _seconds(told: Any) -> float | None:
    """Retry-After in seconds; as a date, which a proxy may send, it is not known."""
    try:
        seconds = float(told)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < math.inf else None


def only_model(models: Sequence[str]) -> str:
    if len(models) != 1:
        raise BadRequest(f"name a model: {', '.join(models) or 'none is served at the moment'}", param="model")
    return models[0]


def checked(reply: httpx.Response) -> dict[str, Any]:
    body = json_object(reply.content)
    if not reply.is_success:
        raise error_from(reply.status_code, body, reply.headers)
    return body


def json_object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content or b"{}")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def piece_of(line: str) -> str | None:
    """The text of one line of a stream, None at the stream's end; raises the error that it carries."""
    if line == "data: [DONE]":
        return None
    if not line.startswith("data: "):
        return ""
    told = json_object(line.removeprefix("data: ").encode())
    if "error" in told:
        raise error_within(told)
    if not told.get("choices"):
        return ""
    choice = told["choices"][0]
    return str((choice["delta"].get("content") if "delta" in choice else choice.get("text")) or "")
