"""A durable invocation: work that is promised an answer, so that it survives the process that accepted it. Pure.

Event work and work with an idempotency key are durable. The item is written before the call is accepted in the log,
and the answer before its end. A plain request has no item: its facts in the log are all that is kept of it.
"""

from __future__ import annotations

from dataclasses import dataclass

ATTEMPTS_MAX = 3
"""Most attempts of one call that count (an offer that was not begun does not)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a durable invocation. Never changed once it is kept."""

    outcome: str
    """"done", "failed", "cancelled" or "expired"."""
    attempt: int
    """The attempt that gave it; 0 if none ran."""
    input_tokens: int
    output_tokens: int
    body: str
    """JSON: {"text", "reason"} of a done one, else {"error": …, "status": …, "retry_after_s"?: …}."""
    ended_at: float


@dataclass(frozen=True, slots=True)
class Invocation:
    """Times are Unix seconds, costs service units."""

    id: str
    """The id of its call in the log: short, made at acceptance, never from a caller's key."""
    tenant: str
    key: str
    """The caller's idempotency key, or the Lambda request id of event work. Looked up, never part of an id."""
    pool: str
    model: str
    fingerprint: str
    """SHA-256 of the request. The same key with another fingerprint is refused."""
    created_at: float
    deadline_at: float
    chat: bool
    body: str | None
    """The request (Request.to_json); None once it is answered."""
    answer: Answer | None = None
