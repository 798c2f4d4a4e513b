"""What is kept for a caller that may come back: durable invocations with their answers, and responses. Pure.

A durable invocation survives the process that accepted it, because its caller may fetch the answer later. Every
`lambda.invoke` and every HTTP request with an idempotency key is durable. Its item is written to the store before the
log accepts the call, and its answer before the log has its end. A plain request has no item, only facts in the log.

A kept response of POST /v1/responses is read by its id, and later requests of the same tenant refer to it or to its
items.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from dispatcher.model.requests import Endpoint

ATTEMPTS_MAX = 3
"""The most attempts of one call that count. An offer that was not begun does not count."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The end of a durable invocation. Once it is stored, it never changes."""

    outcome: str
    """"done", "failed", "cancelled" or "expired"."""
    attempt: int
    """The attempt that gave the answer; 0 if none ran."""
    input_tokens: int
    output_tokens: int
    body: str
    """JSON: {"choices": […], "cached_tokens"?: …, "reasoning_tokens"?: …, "adapter_loaded"?: true} (answers.Collected)
    if `outcome` is "done"; otherwise {"error": …, "status": …, "retry_after_s"?: …}."""
    ended_at: float


def details_of(answer: StoredAnswer) -> tuple[int, int]:
    """Return the cached and the reasoning tokens of an answer; zeros for one that is not "done"."""
    kept = _fields_of(answer)
    return int(kept.get("cached_tokens", 0)), int(kept.get("reasoning_tokens", 0))


def priced_details_of(answer: StoredAnswer) -> dict[str, Any]:
    """Return the fields of the command End on which the price of an answer depends, beside its tokens."""
    kept = _fields_of(answer)
    return {
        "cached_tokens": int(kept.get("cached_tokens", 0)),
        "adapter_loaded": bool(kept.get("adapter_loaded", False)),
    }


def _fields_of(answer: StoredAnswer) -> dict[str, Any]:
    return dict(json.loads(answer.body)) if answer.outcome == "done" and answer.body else {}


@dataclass(frozen=True, slots=True)
class Invocation:
    """Times are Unix seconds, costs service units."""

    id: str
    """The id of its call in the log: a process and a sequence number, never made from the caller's key."""
    tenant: str
    key: str
    """The caller's idempotency key, or the Lambda request id. It is used for look-ups, and is no part of `id`."""
    pool: str
    model: str
    fingerprint: str
    """SHA-256 of the request. The same key with another fingerprint is refused."""
    created_at: float
    deadline_at: float
    endpoint: Endpoint
    body: str | None
    """The request (Request.to_json); None after the answer was stored."""
    answer: StoredAnswer | None = None
    shared: bool = False
    """True if a repetition of the key sent the call to the gate too. Then the refusal of one of them is not its end."""
    trace: str = ""
    """The traceparent of its first span, so that every process that executes it continues its trace; empty: none."""


CONTENT_BYTES_MAX = 1_500_000
"""The longest content of one kept response. A longer one is not kept."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    tenant: str
    id: str
    """`resp_` and the id of its call."""
    content: bytes
    """The response and its input items (dispatcher/responses/items.py). The store does not read them."""
    expires_at: float
    """Unix seconds. From this time on the response cannot be read."""


class ResponseStore(Protocol):
    """A part of dispatcher.ports.Store. Each response belongs to one tenant, and no other tenant can read it."""

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        """Store the response, also in place of one with the same id. Return whether it was stored.

        It is not stored if the contents of the tenant's responses are then longer than `bytes_max` together. A response
        counts until the end of the hour in which it expires, and a replaced one until the new one is stored. Concurrent
        calls may exceed the limit by their own contents.
        """
        ...

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        """Return the tenant's response with this id, or None."""
        ...

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        """Delete the tenant's response with this id. Return whether there was one."""
        ...
