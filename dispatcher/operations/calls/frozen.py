"""What a front in Lambda must bound itself, because Lambda freezes it and reports no disconnect.

Lambda stops a process when the last byte of its answer has left, does not say that a caller has gone, and runs one
execution for each caller that waits. So such a front finishes its work before the last byte
(functions/http_api/frozen.py), generates for a caller at most a budget of tokens and time, waits behind few requests of
a tenant, and ends whole answers before the gateway does. HEADGATE_FRONT=lambda says so; no process guesses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from dispatcher.model.commands import Outcome, Waiting
from dispatcher.model.errors import DeadlineExceeded, Refused
from dispatcher.model.tenants import Tenant
from dispatcher.operations.limits import RETRY_AFTER_S

DEADLINE_MAX_S = 870.0
"""The longest deadline in a front in Lambda: Lambda ends an execution after 900 s, before it could settle its call."""


@dataclass(frozen=True, slots=True)
class FrozenFront:
    """The bounds. The budget of a caller that may have left: `tokens_max`, and every request's deadline."""

    tokens_max: int = 4096
    """The most output tokens of one request, over all its choices."""
    whole_s: float = 285.0
    """An answer that is not streamed ends after this time. API Gateway ends a silent connection after 300 s."""


def within_budget(front: FrozenFront | None, tenant: Tenant) -> Tenant:
    """Return the tenant with at most the budget's tokens for one request."""
    if front is None or tenant.max_tokens_max <= front.tokens_max:
        return tenant
    return replace(tenant, max_tokens_max=front.tokens_max)


def check_place(front: FrozenFront | None, outcome: Outcome, waiting_max: int) -> None:
    """Raise Refused if a front in Lambda would wait behind more than `waiting_max` requests of the tenant."""
    if front is None or not isinstance(outcome, Waiting) or outcome.position <= waiting_max:
        return
    wait_s = RETRY_AFTER_S if outcome.wait_s is None else float(ceil(max(RETRY_AFTER_S, outcome.wait_s)))
    message = (
        f"{outcome.position - 1} requests of this tenant wait before this one. A front in Lambda waits at place "
        f"{waiting_max} at most (limit `waiting_executions`). Try again in about {wait_s:.0f} s."
    )
    raise Refused(message, "waiting_executions", wait_s)


def too_late(front: FrozenFront, *, durable: bool) -> DeadlineExceeded:
    """Return the error of an answer that is not whole after `whole_s`."""
    advice = (
        "The request goes on: repeat it with the same Idempotency-Key for its answer."
        if durable
        else "The request was ended. Stream it (`stream`: true), send an Idempotency-Key and repeat it, or use "
        "lambda.invoke with InvocationType Event."
    )
    return DeadlineExceeded(
        f"The answer was not complete after {front.whole_s:g} s, as long as a front in Lambda may "
        f"wait without streaming. {advice}"
    )
