"""Reads the error in the stored answer of a durable call, and makes an answer for a call that ended without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dispatcher.model.answers import answer_of_outcome, error_body, error_of_outcome
from dispatcher.model.commands import Outcome, Over
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    ServiceError,
    StoreUnavailable,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.kept import Invocation, StoredAnswer, details_of
from dispatcher.model.worker_protocol import Finished

_OURS: dict[str, Callable[[str], AnsweredError]] = {
    "worker_failed": WorkerFailed,
    "deadline_exceeded": DeadlineExceeded,
}


def is_retryable(answer: StoredAnswer) -> bool:
    """Return whether the request may be tried again under its key: the error is a 429 or has `retry_after_s`.

    The worker shed or preempted the request, the gate refused it, or it was lost before the gate accepted it.
    """
    if answer.outcome != "failed" or not answer.body:
        return False
    body = json.loads(answer.body)
    return body["status"] == 429 or "retry_after_s" in body


def error_of(answer: StoredAnswer) -> AnsweredError:
    """Return the error of an answer that is not "done": the stored error, else the one for the outcome."""
    body = json.loads(answer.body) if answer.body else {}
    if "error" not in body:
        return error_of_outcome(answer.outcome)
    fields, status = body["error"], body["status"]
    if fields["code"] in _OURS:
        return _OURS[fields["code"]](fields["message"])
    kind = TenantError if status < 500 else ServiceError
    return kind(fields["message"], fields["code"], fields["param"], status, fields["type"], body.get("retry_after_s"))


def choices_of(answer: StoredAnswer) -> list[dict[str, Any]]:
    """Return the choices of an answer that is "done". (An older version stored the only choice itself.)"""
    kept: dict[str, Any] = json.loads(answer.body)
    choices: list[dict[str, Any]] = kept.get("choices") or [kept]
    return choices


def last_event(answer: StoredAnswer) -> Finished:
    """Return the event that ended an answer that is "done"."""
    reasons = tuple(each["reason"] for each in choices_of(answer))
    counts = (answer.input_tokens, answer.output_tokens)
    cached_tokens, reasoning_tokens = details_of(answer)
    return Finished(reasons[0], *counts, reasons if len(reasons) > 1 else (), cached_tokens, reasoning_tokens)


def answer_without(item: Invocation, outcome: Outcome, now: float) -> StoredAnswer:
    """Return an answer for a call that the gate does not hold any more and that has no stored answer.

    `outcome` is the gate's answer to a Status. If the gate does not know the call, and its deadline has not passed, the
    call was lost before the gate accepted it: the answer is an error that allows a new try under the key. After the
    deadline the call counts as expired, because the gate forgets the ends of calls after a while.
    """
    if isinstance(outcome, Over):
        return answer_of_outcome(outcome, now)
    if now >= item.deadline_at:
        return answer_of_outcome(Over(item.id, 0, "expired"), now)
    lost = StoreUnavailable("The request was lost before the gate accepted it. Send it again.")
    return StoredAnswer("failed", 0, 0, 0, error_body(lost), now)
