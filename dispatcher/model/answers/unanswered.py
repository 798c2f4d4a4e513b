"""Makes an answer for a durable call that ended without one. It is an error, chosen by the call's outcome. Pure."""

from __future__ import annotations

from dispatcher.model.answers.refusals import error_body
from dispatcher.model.commands import Over
from dispatcher.model.errors import AnsweredError, DeadlineExceeded, TenantError, WorkerFailed
from dispatcher.model.records.invocation import StoredAnswer

ANSWER_LOST = "The connection to the worker broke at the end of the answer."


def error_of_outcome(outcome: str) -> AnsweredError:
    """Return the error that a caller gets if its call ended with `outcome` and without an answer for it."""
    if outcome == "expired":
        return DeadlineExceeded()
    if outcome == "cancelled":
        return _cancelled_error()
    return WorkerFailed(ANSWER_LOST) if outcome == "done" else WorkerFailed()


def answer_of_outcome(over: Over, now: float) -> StoredAnswer:
    """Return an answer for a durable call that ended in its queue, or after its last attempt was lost."""
    body = error_body(error_of_outcome(over.outcome))
    outcome = "failed" if over.outcome == "done" else over.outcome
    return StoredAnswer(outcome, over.attempt, over.input_tokens, over.output_tokens, body, now)


def _cancelled_error() -> TenantError:
    """Return the error for a later request of the result. The caller had disconnected, and no answer was kept."""
    message = "This invocation was cancelled when its caller hung up. Send the request again under another key."
    return TenantError(message, "cancelled", None, 409, "invalid_request_error")
