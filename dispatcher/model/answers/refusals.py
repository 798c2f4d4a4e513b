"""Turns a worker's refusal into the caller's error, and an error into the answer of a durable call. Pure."""

from __future__ import annotations

import json

from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    Preempted,
    Refused,
    ServiceError,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.worker_protocol import WorkRefused

TOO_MANY_REQUESTS = 429
UNAVAILABLE = 503
ENGINE_OVERLOADED = "engine_overloaded"
"""The engine takes no more requests for now. It may take this one later."""
PREEMPTED_CODES = frozenset({"preempted", "preempted_too_often"})
"""The worker has not failed. A new try at once would end in the same way."""
DEADLINE_EXCEEDED = "deadline_exceeded"
RESULT_TOO_LARGE = "result_too_large"


def error_of_refusal(refusal: WorkRefused) -> AnsweredError:
    """Return the error that ends the call. The refusal must be final."""
    if refusal.code in PREEMPTED_CODES:
        return Preempted(refusal.message, refusal.code, refusal.retry_after_s)
    if refusal.code == DEADLINE_EXCEEDED:
        return DeadlineExceeded()
    if refusal.code == RESULT_TOO_LARGE:
        return ServiceError(refusal.message, refusal.code)
    if refusal.status == UNAVAILABLE and refusal.code == ENGINE_OVERLOADED:
        return ServiceError(refusal.message, refusal.code, None, UNAVAILABLE, "server_error", refusal.retry_after_s)
    if refusal.status == TOO_MANY_REQUESTS:
        return Refused(refusal.message, refusal.code, refusal.retry_after_s)
    if refusal.status >= 500:
        return WorkerFailed()
    return TenantError(refusal.message, refusal.code, None, refusal.status, "invalid_request_error")


def error_body(error: AnsweredError) -> str:
    """Return the error as the JSON text that is stored as the answer of a durable call (invocation.Answer.body)."""
    return json.dumps({**error.body_with_retry(), "status": error.status}, separators=(",", ":"))
