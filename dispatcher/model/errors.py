"""Every error of the gate, in one tree.

HeadgateError
├── TenantError            the tenant can correct it; with OpenAI's error fields and an HTTP status
│   ├── InvalidRequest         400  malformed, out of range, unknown field
│   │   ├── RequestTooLarge    413
│   │   └── SlowRequest        408  the body does not arrive in time
│   ├── Unauthorized           401  missing, unknown, expired or revoked key
│   ├── TenantDeleted          403  the tenant was deleted while the request waited
│   ├── UnknownModel           404
│   ├── UnknownInvocation      404
│   ├── IdempotencyConflict    409  the same key with another body
│   └── Refused                429  over a limit, with the seconds to wait; also if a worker sheds the request
├── ServiceError           headgate cannot serve the request; HTTP 5xx, FunctionError for lambda.invoke. Itself: 500
│   ├── NoWorker               503  no worker serves this model
│   ├── WorkerFailed           502  the worker stopped before the end
│   ├── Preempted              503  the worker ended the request in favour of more urgent work
│   ├── DeadlineExceeded       504
│   └── StoreUnavailable       503  the table cannot be reached, so the request is refused
│       ├── NotAccepted        503  the same, and nothing of the request is in the log
│       └── WrongClock         503  this process may not write to the log, because its clock is wrong
└── ConfigurationError     the operator can correct it; exit code 2
"""

from __future__ import annotations

from dataclasses import dataclass

INTERNAL_ERROR = "internal_error"
"""The code of a request that an error in the gate's code ended, and no other request (service/gate/faults.py)."""


STORE_UNAVAILABLE = "store_unavailable"
"""The code of requests that fail because the table does not answer; also in the refusals of a leader."""


class HeadgateError(Exception):
    """The base of all errors of the gate."""


@dataclass(eq=False)
class AnsweredError(HeadgateError):
    """An error that is sent to the caller. `retry_after_s`: seconds until a new try makes sense; None if unknown."""

    message: str
    code: str
    param: str | None = None
    status: int = 500
    type: str = "server_error"
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        """Return OpenAI's error object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def body_with_retry(self) -> dict[str, object]:
        """Return OpenAI's error object and, if known, `retry_after_s` beside it: for answers without HTTP headers."""
        retry = {} if self.retry_after_s is None else {"retry_after_s": self.retry_after_s}
        return {**self.body(), **retry}


class TenantError(AnsweredError):
    pass


class InvalidRequest(TenantError):
    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message, code, param, 400, "invalid_request_error")


class RequestTooLarge(InvalidRequest):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param, "request_too_large")
        self.status = 413


class EncodedRequest(InvalidRequest):
    def __init__(self, encoding: str) -> None:
        message = f"The request body has the Content-Encoding `{encoding[:40]}`. Send it without one."
        super().__init__(message, None, "unsupported_encoding")
        self.status = 415


class SlowRequest(InvalidRequest):
    def __init__(self, within_s: float) -> None:
        super().__init__(f"The request body did not arrive within {within_s:g} s.", None, "request_timeout")
        self.status = 408


class Unauthorized(TenantError):
    def __init__(self, message: str = "Incorrect API key provided.") -> None:
        super().__init__(message, "invalid_api_key", None, 401, "invalid_request_error")


class TenantDeleted(TenantError):
    """A waiting request ends with this error if its tenant is deleted. Nothing is charged."""

    def __init__(self) -> None:
        message = (
            "The tenant of this API key was deleted before a worker began this request. Nothing was charged. "
            "Ask your operator for a new key."
        )
        super().__init__(message, "tenant_deleted", None, 403, "invalid_request_error")


class UnknownModel(TenantError):
    def __init__(self, model: str) -> None:
        message = f"The model '{model[:100]}' does not exist or you do not have access to it."
        super().__init__(message, "model_not_found", "model", 404, "invalid_request_error")


class UnknownInvocation(TenantError):
    def __init__(self) -> None:
        message = (
            "No invocation has this id. An Event invoke has none before Lambda begins it, and none if it was refused."
        )
        super().__init__(message, "not_found", "id", 404, "invalid_request_error")


class IdempotencyConflict(TenantError):
    def __init__(self) -> None:
        message = "This idempotency key was used before with another request body."
        super().__init__(message, "idempotency_conflict", None, 409, "invalid_request_error")


class Refused(TenantError):
    """The request is refused before any work is done, and costs nothing."""

    def __init__(self, message: str, code: str, retry_after_s: float | None) -> None:
        super().__init__(message, code, None, 429, "rate_limit_error", retry_after_s)


class ServiceError(AnsweredError):
    pass


class NoWorker(ServiceError):
    def __init__(self, message: str = "No worker serves this model at the moment.") -> None:
        super().__init__(message, "no_worker", None, 503, "server_error", 5.0)


class WorkerFailed(ServiceError):
    """`began` is False if the worker certainly did not begin the attempt."""

    began: bool = True

    def __init__(
        self, message: str = "The worker stopped before the answer was complete.", *, began: bool = True
    ) -> None:
        super().__init__(message, "worker_failed", None, 502, "server_error")
        self.began = began


class Preempted(ServiceError):
    """The worker ended the request early. The tokens generated so far are charged."""

    def __init__(self, message: str, code: str, retry_after_s: float | None) -> None:
        super().__init__(message, code, None, 503, "server_error", retry_after_s)


class DeadlineExceeded(ServiceError):
    def __init__(self, message: str = "The deadline passed before the answer was complete.") -> None:
        super().__init__(message, "deadline_exceeded", None, 504, "server_error")


class StoreUnavailable(ServiceError):
    def __init__(self, message: str = "The tenant store cannot be reached.") -> None:
        super().__init__(message, STORE_UNAVAILABLE, None, 503, "server_error", 1.0)


class NotAccepted(StoreUnavailable):
    """The command is certainly not in the log, and no copy of it is on the way there."""


class WrongClock(StoreUnavailable):
    """The store refused an entry and wrote nothing, because this process's clock differs from the store's."""


class ConfigurationError(HeadgateError):
    """The operator's configuration is wrong. The message is one line: what is wrong and what to do."""


class LogError(HeadgateError):
    """The shard's log cannot be used. The message names the position."""


class LogGap(LogError):
    """An entry is missing, but a later one exists: it was deleted after a snapshot, or has expired. Load a snapshot."""


class LogCorrupt(LogError):
    """An entry or a snapshot cannot be decoded or folded. The shard stops."""


class LogNewer(LogCorrupt):
    """An entry or a snapshot is of a newer version. A newer headgate can read it."""


class EntryTooLarge(LogError):
    """An entry is larger than an item of the store may be. Decide fewer commands at once."""


class ConnectionLost(HeadgateError):
    """The connection to another process broke, or could not be made."""

    def __init__(self, message: str = "The connection is lost.", *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """True if the host answered that no process listens on the port. Then the process is gone."""


class BadFrame(ConnectionLost):
    """The other process sent bytes that are no frame of this version, or are not signed. The connection is closed."""
