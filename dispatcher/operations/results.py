"""Answers as they are kept with an invocation."""

from __future__ import annotations

import json

from dispatcher.errors import AnsweredError, DeadlineExceeded, ServiceError, TenantError, WorkerFailed
from dispatcher.invocation import Result

_OURS = {"worker_failed": WorkerFailed, "deadline_exceeded": DeadlineExceeded}


def error_result(error: AnsweredError) -> Result:
    return Result(error.status, json.dumps(error.body()))


def cancelled() -> TenantError:
    """For whoever asks what became of it: its caller hung up, and nothing was kept."""
    message = "This invocation was cancelled when its caller hung up. Send the request again under another key."
    return TenantError(message, "cancelled", None, 409, "invalid_request_error")


def error_of(result: Result) -> AnsweredError:
    """The error again, as it was answered the first time."""
    fields = json.loads(result.body)["error"]
    if fields["code"] in _OURS:
        return _OURS[fields["code"]](fields["message"])
    kind = TenantError if result.status < 500 else ServiceError
    return kind(fields["message"], fields["code"], fields["param"], result.status, fields["type"])
