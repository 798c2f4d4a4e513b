"""Answers as they are kept with an invocation."""

from __future__ import annotations

import json

from dispatcher.model.errors import AnsweredError, DeadlineExceeded, ServiceError, TenantError, WorkerFailed
from dispatcher.model.invocation import Invocation, Result, State

_OURS = {"worker_failed": WorkerFailed, "deadline_exceeded": DeadlineExceeded}


def error_result(error: AnsweredError) -> Result:
    after = {} if error.retry_after_s is None else {"retry_after_s": error.retry_after_s}
    return Result(error.status, json.dumps({**error.body(), **after}))


def is_retryable(invocation: Invocation) -> bool:
    """Its answer was to send it again later: a worker turned it away, or ended it to make room."""
    if invocation.state is not State.FAILED or invocation.result is None:
        return False
    return invocation.result.status == 429 or "retry_after_s" in json.loads(invocation.result.body)


def cancelled() -> TenantError:
    """For whoever asks what became of it: its caller hung up, and nothing was kept."""
    message = "This invocation was cancelled when its caller hung up. Send the request again under another key."
    return TenantError(message, "cancelled", None, 409, "invalid_request_error")


def error_of(result: Result) -> AnsweredError:
    """The error again, as it was answered the first time."""
    body = json.loads(result.body)
    fields = body["error"]
    if fields["code"] in _OURS:
        return _OURS[fields["code"]](fields["message"])
    kind = TenantError if result.status < 500 else ServiceError
    told = fields["message"], fields["code"], fields["param"], result.status, fields["type"]
    return kind(*told, body.get("retry_after_s"))
