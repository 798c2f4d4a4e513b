"""Answers in OpenAI's form: whole, in pieces, refused, or missing. Pure.

An AnswerHead makes bodies and stream chunks from the events and the token counts of a worker. Collected merges the
pieces of an answer into its choices: for whole answers, and for answers that are kept. A choice is `{"text",
"reason"}`, with `delta` (the other fields of OpenAI's message: tool calls, reasoning …) and `logprobs` if there are
any.

A worker's refusal becomes the caller's error. A durable call that ended without an answer gets an error as its answer,
chosen by the call's outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.commands import Over
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    Preempted,
    Refused,
    ServiceError,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkRefused

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
        """Return the whole answer, not streamed. `choices` are as in Collected."""
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


def json_text(text: str) -> bytes:
    """Return the text in JSON, as in an event."""
    return _ENCODER.encode(text).encode()


DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"
"""A comment line: clients ignore it, and it keeps proxies from closing an idle connection."""


Choices = Sequence[Mapping[str, Any]]
"""The choices of a whole answer."""
_WHOLE = frozenset({"id", "type", "role", "name", "index", "format", "signature"})
"""Texts that an engine sends whole and may repeat. All other texts come in pieces."""


@dataclass(slots=True)
class _Pieces:
    texts: list[str] = field(default_factory=list)
    deltas: list[Mapping[str, Any]] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Collected:
    """The choices and the counts that an execution has delivered so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    reason: str = "stop"
    reasons: tuple[str, ...] = ()
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    _pieces: dict[int, _Pieces] = field(default_factory=dict)

    def note(self, event: WorkEvent) -> None:
        if isinstance(event, Token):
            self.output_tokens = event.output_tokens
            self._add(event)
        elif isinstance(event, Started):
            self.input_tokens = event.input_tokens
        elif isinstance(event, Finished):
            self.input_tokens, self.output_tokens = event.input_tokens, event.output_tokens
            self.reason, self.reasons = event.reason, event.reasons
            self.cached_tokens, self.reasoning_tokens = event.cached_tokens, event.reasoning_tokens

    @property
    def finished(self) -> Finished:
        """The event that ends the answer."""
        counts = (self.input_tokens, self.output_tokens)
        return Finished(self.reason, *counts, self.reasons, self.cached_tokens, self.reasoning_tokens)

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return "".join(self._pieces[0].texts) if 0 in self._pieces else ""

    @property
    def is_plain(self) -> bool:
        """Whether there is only text, of one choice."""
        return all(not index and not (each.deltas or each.logprobs) for index, each in self._pieces.items())

    def choices(self) -> list[dict[str, Any]]:
        """Return the choices in order. A choice without any token is empty."""
        count = max(1, len(self.reasons), *(index + 1 for index in self._pieces))
        return [self._choice(index) for index in range(count)]

    def _add(self, token: Token) -> None:
        pieces = self._pieces.get(token.choice)
        if pieces is None:
            pieces = self._pieces[token.choice] = _Pieces()
        if token.text:
            pieces.texts.append(token.text)
        if token.delta:
            pieces.deltas.append(token.delta)
        if token.logprobs:
            pieces.logprobs.append(token.logprobs)

    def _choice(self, index: int) -> dict[str, Any]:
        pieces = self._pieces.get(index, _Pieces())
        reason = self.reasons[index] if index < len(self.reasons) else self.reason
        choice: dict[str, Any] = {"text": "".join(pieces.texts), "reason": reason}
        if pieces.deltas:
            choice["delta"] = merged(pieces.deltas)
        if pieces.logprobs:
            choice["logprobs"] = merged(pieces.logprobs)
        return choice


def merged(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the object that a client gets if it puts the pieces together.

    Texts are joined, objects are merged field by field, and lists are joined. List items with the same `index` (tool
    calls) are merged.
    """
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {
        name: _join_values(name, [piece[name] for piece in pieces if piece.get(name) is not None]) for name in names
    }


def tokens_of(choices: Iterable[Mapping[str, Any]], output_tokens: int) -> list[Token]:
    """Return whole choices as events: one Token for each choice that is not empty."""
    return [
        Token(each["text"], output_tokens, index, each.get("delta"), each.get("logprobs"))
        for index, each in enumerate(choices)
        if each["text"] or each.get("delta") or each.get("logprobs")
    ]


def _join_values(name: str, values: list[Any]) -> Any:
    if not values:
        return None
    if all(isinstance(each, str) for each in values):
        return next(filter(None, values), "") if name in _WHOLE else "".join(values)
    if all(isinstance(each, Mapping) for each in values):
        return merged(values)
    if all(isinstance(each, list) for each in values):
        return _join_items([item for each in values for item in each])
    return values[-1]


def _join_items(items: list[Any]) -> list[Any]:
    if not all(isinstance(item, Mapping) and isinstance(item.get("index"), int) for item in items):
        return items
    by_index: dict[int, list[Mapping[str, Any]]] = {}
    for item in items:
        by_index.setdefault(item["index"], []).append(item)
    return [merged(by_index[index]) for index in sorted(by_index)]


_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503
ENGINE_OVERLOADED = "engine_overloaded"
"""The engine takes no more requests for now. It may take this one later."""
_PREEMPTED_CODES = frozenset({"preempted", "preempted_too_often"})
"""The worker has not failed. A new try at once would end in the same way."""
DEADLINE_EXCEEDED = "deadline_exceeded"
RESULT_TOO_LARGE = "result_too_large"


def error_of_refusal(refusal: WorkRefused) -> AnsweredError:
    """Return the error that ends the call. The refusal must be final."""
    if refusal.code in _PREEMPTED_CODES:
        return Preempted(refusal.message, refusal.code, refusal.retry_after_s)
    if refusal.code == DEADLINE_EXCEEDED:
        return DeadlineExceeded()
    if refusal.code == RESULT_TOO_LARGE:
        return ServiceError(refusal.message, refusal.code)
    if refusal.status == _UNAVAILABLE and refusal.code == ENGINE_OVERLOADED:
        return ServiceError(refusal.message, refusal.code, None, _UNAVAILABLE, "server_error", refusal.retry_after_s)
    if refusal.status == _TOO_MANY_REQUESTS:
        return Refused(refusal.message, refusal.code, refusal.retry_after_s)
    if refusal.status >= 500:
        return WorkerFailed()
    return TenantError(refusal.message, refusal.code, None, refusal.status, "invalid_request_error")


def error_body(error: AnsweredError) -> str:
    """Return the error as the JSON text that is stored as the answer of a durable call (invocation.Answer.body)."""
    return json.dumps({**error.body_with_retry(), "status": error.status}, separators=(",", ":"))


_ANSWER_LOST = "The connection to the worker broke at the end of the answer."


def error_of_outcome(outcome: str) -> AnsweredError:
    """Return the error that a caller gets if its call ended with `outcome` and without an answer for it."""
    if outcome == "expired":
        return DeadlineExceeded()
    if outcome == "cancelled":
        return _cancelled_error()
    return WorkerFailed(_ANSWER_LOST) if outcome == "done" else WorkerFailed()


def answer_of_outcome(over: Over, now: float) -> StoredAnswer:
    """Return an answer for a durable call that ended in its queue, or after its last attempt was lost."""
    body = error_body(error_of_outcome(over.outcome))
    outcome = "failed" if over.outcome == "done" else over.outcome
    return StoredAnswer(outcome, over.attempt, over.input_tokens, over.output_tokens, body, now)


def _cancelled_error() -> TenantError:
    """Return the error for a later request of the result. The caller had disconnected, and no answer was kept."""
    message = "This invocation was cancelled when its caller hung up. Send the request again under another key."
    return TenantError(message, "cancelled", None, 409, "invalid_request_error")
