"""The result that is kept with an invocation: an error as a result, and back."""

from __future__ import annotations

import json

from dispatcher.model.errors import AnsweredError, DeadlineExceeded, ServiceError, TenantError, WorkerFailed
from dispatcher.model.old_invocation import Invocation, Result, State

_OURS = {"worker_failed": WorkerFailed, "deadline_exceeded": DeadlineExceeded}


def error_result(error: AnsweredError) -> Result:
    """Return the result that keeps `error`."""
    return Result(error.status, json.dumps(error.body_with_retry()))


def is_retryable(invocation: Invocation) -> bool:
    """Return whether its error invites a new try: a worker shed the request, or ended it in favour of others."""
    if invocation.state is not State.FAILED or invocation.result is None:
        return False
    return invocation.result.status == 429 or "retry_after_s" in json.loads(invocation.result.body)


def cancelled() -> TenantError:
    """Return the error for a later request for its result: its caller disconnected, and no answer was kept."""
    message = "This invocation was cancelled when its caller hung up. Send the request again under another key."
    return TenantError(message, "cancelled", None, 409, "invalid_request_error")


def error_of(result: Result) -> AnsweredError:
    """Return the error that `error_result` kept."""
    body = json.loads(result.body)
    fields = body["error"]
    if fields["code"] in _OURS:
        return _OURS[fields["code"]](fields["message"])
    kind = TenantError if result.status < 500 else ServiceError
    return kind(
        fields["message"], fields["code"], fields["param"], result.status, fields["type"], body.get("retry_after_s")
    )
