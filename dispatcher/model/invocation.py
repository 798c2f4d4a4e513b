"""A durable invocation. It survives the process that accepted it, because its caller may fetch the answer later. Pure.

`Event` invocations and calls with an idempotency key are durable. The item is written before the call is accepted in
the log, and the answer before its end. A plain request has no item, only its facts in the log.
"""

from __future__ import annotations

from dataclasses import dataclass

ATTEMPTS_MAX = 3
"""Most attempts of one call that count (an offer that was not begun does not)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a durable invocation. Once it is stored, it never changes."""

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
    shared: bool = False
    """A repeat of its key also put the call before the gate: a refusal of the first try is not its end."""
