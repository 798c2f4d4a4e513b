"""Reads the stored answer of a durable call: its error, and the error of a call that ended without an answer."""

from __future__ import annotations

import json
from collections.abc import Callable

from dispatcher.model.commands import Outcome, Over
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    ServiceError,
    StoreUnavailable,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.invocation import Answer, Invocation
from dispatcher.model.refusals import error_body
from dispatcher.model.unanswered import answer_of_outcome, error_of_outcome

_OURS: dict[str, Callable[[str], AnsweredError]] = {
    "worker_failed": WorkerFailed,
    "deadline_exceeded": DeadlineExceeded,
}


def is_retryable(answer: Answer) -> bool:
    """Return whether the request may be tried again: a worker shed it, or ended it in favour of others.

    False for an answer with an empty body, because it has no error code.
    """
    if answer.outcome != "failed" or not answer.body:
        return False
    body = json.loads(answer.body)
    return body["status"] == 429 or "retry_after_s" in body


def error_of(answer: Answer) -> AnsweredError:
    """Return the error of an answer that is not "done": the stored error, or the one that its outcome means."""
    body = json.loads(answer.body) if answer.body else {}
    if "error" not in body:
        return error_of_outcome(answer.outcome)
    fields, status = body["error"], body["status"]
    if fields["code"] in _OURS:
        return _OURS[fields["code"]](fields["message"])
    kind = TenantError if status < 500 else ServiceError
    return kind(fields["message"], fields["code"], fields["param"], status, fields["type"], body.get("retry_after_s"))


def answer_without(item: Invocation, outcome: Outcome, now: float) -> Answer:
    """Return the answer of a call that the gate does not hold any more and that has no stored answer.

    `outcome` is the gate's answer to a Status. If the gate does not know the call, it was lost before it was accepted:
    until its deadline its key is free for a new try. After the deadline the call counts as expired, because the log
    does not remember ends for ever.
    """
    if isinstance(outcome, Over):
        return answer_of_outcome(outcome, now)
    if now >= item.deadline_at:
        return answer_of_outcome(Over(item.id, 0, "expired"), now)
    lost = StoreUnavailable("The request was lost before the gate accepted it. Send it again.")
    return Answer("failed", 0, 0, 0, error_body(lost), now)
