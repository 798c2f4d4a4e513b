"""The stored answers of durable calls: what an answer contains, and the last try of an idempotency key.

A call that ended without an answer gets one here, which is an error.

If the call of a key ended with a retryable error, a repetition of the key is stored under a new key: the caller's key,
`~`, and the number of the try. A caller's key cannot contain `~`. The numbers have no gap, so few reads find the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dispatcher.model.answers import answer_of_outcome, error_body, error_of_outcome
from dispatcher.model.commands import Outcome, Over
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    ServiceError,
    StoreUnavailable,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.kept import Invocation, StoredAnswer, details_of
from dispatcher.model.worker_protocol import Finished
from dispatcher.operations.context import Context
from dispatcher.operations.store_patience import in_time

_OURS: dict[str, Callable[[str], AnsweredError]] = {
    "worker_failed": WorkerFailed,
    "deadline_exceeded": DeadlineExceeded,
}


def is_retryable(answer: StoredAnswer) -> bool:
    """Return whether the request may be tried again under its key: the error is a 429 or has `retry_after_s`.

    The worker shed or preempted the request, the gate refused it, or it was lost before the gate accepted it.
    """
    if answer.outcome != "failed" or not answer.body:
        return False
    body = json.loads(answer.body)
    return body["status"] == 429 or "retry_after_s" in body


def error_of(answer: StoredAnswer) -> AnsweredError:
    """Return the error of an answer that is not "done": the stored error, else the one for the outcome."""
    body = json.loads(answer.body) if answer.body else {}
    if "error" not in body:
        return error_of_outcome(answer.outcome)
    fields, status = body["error"], body["status"]
    if fields["code"] in _OURS:
        return _OURS[fields["code"]](fields["message"])
    kind = TenantError if status < 500 else ServiceError
    return kind(fields["message"], fields["code"], fields["param"], status, fields["type"], body.get("retry_after_s"))


def choices_of(answer: StoredAnswer) -> list[dict[str, Any]]:
    """Return the choices of an answer that is "done". (An older version stored the only choice itself.)"""
    kept: dict[str, Any] = json.loads(answer.body)
    choices: list[dict[str, Any]] = kept.get("choices") or [kept]
    return choices


def last_event(answer: StoredAnswer) -> Finished:
    """Return the event that ended an answer that is "done"."""
    reasons = tuple(each["reason"] for each in choices_of(answer))
    counts = (answer.input_tokens, answer.output_tokens)
    cached_tokens, reasoning_tokens = details_of(answer)
    return Finished(reasons[0], *counts, reasons if len(reasons) > 1 else (), cached_tokens, reasoning_tokens)


def answer_without(item: Invocation, outcome: Outcome, now: float) -> StoredAnswer:
    """Return an answer for a call that the gate does not hold any more and that has no stored answer.

    `outcome` is the gate's answer to a Status. If the gate does not know the call, and its deadline has not passed, the
    call was lost before the gate accepted it: the answer is an error that allows a new try under the key. After the
    deadline the call counts as expired, because the gate forgets the ends of calls after a while.
    """
    if isinstance(outcome, Over):
        return answer_of_outcome(outcome, now)
    if now >= item.deadline_at:
        return answer_of_outcome(Over(item.id, 0, "expired"), now)
    lost = StoreUnavailable("The request was lost before the gate accepted it. Send it again.")
    return StoredAnswer("failed", 0, 0, 0, error_body(lost), now)


TRIES_PER_KEY_MAX = 4096
"""The most tries of one key while its answers are stored. Further repetitions get the last error again."""


def numbered(key: str, number: int) -> str:
    return f"{key}~{number}" if number else key


async def latest_of_key(context: Context, tenant: str, key: str) -> Invocation | None:
    """Return the last invocation with a caller's key, or None."""
    return (await last_try(context, tenant, key))[1]


async def next_number(context: Context, tenant: str, key: str) -> int:
    """Return the number for a repetition of the key: a new one if its last try may be tried again, otherwise that of
    its last try."""
    number, last = await last_try(context, tenant, key)
    return number + 1 if may_try_again(last) and number + 1 < TRIES_PER_KEY_MAX else number


async def last_try(context: Context, tenant: str, key: str) -> tuple[int, Invocation | None]:
    """Return the number of a key's last try, and its invocation. O(log of the number) reads."""
    found = await in_time(context.store.find(tenant, key))
    low, high, step = 0, TRIES_PER_KEY_MAX, 1
    while may_try_again(found) and low + 1 < high:
        number = low + step if low + step < high else (low + high) // 2
        item = await in_time(context.store.find(tenant, numbered(key, number)))
        if item is None:
            high, step = number, high
        else:
            low, found, step = number, item, 2 * step
    return low, found


def may_try_again(item: Invocation | None) -> bool:
    return item is not None and item.answer is not None and is_retryable(item.answer)
