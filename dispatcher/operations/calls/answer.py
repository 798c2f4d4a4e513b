"""The whole answer of a call as OpenAI's body: at once, and later for callers that did not stream it.

Repetitions of a durable call's key and later queries get the same body as the first caller.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Any

from dispatcher.model.answers import AnswerHead, Collected
from dispatcher.model.commands import Offer, Over, Status, Unknown
from dispatcher.model.errors import TenantDeleted, UnknownInvocation
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.operations.calls.call import Call
from dispatcher.operations.calls.results import answer_without, choices_of, error_of, last_event
from dispatcher.operations.calls.submit import Known
from dispatcher.operations.context import Context
from dispatcher.operations.store_patience import in_time

_STATUS_OF = {"done": "done", "failed": "failed", "expired": "expired", "cancelled": "failed"}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a durable call: "queued", "running", "done", "failed" or "expired"."""

    status: str
    invocation: Invocation


async def result_of(context: Context, known: Known, timeout_s: float = math.inf) -> StoredAnswer | None:
    """Return the answer of a known call, or None if the call is not over after `timeout_s` seconds.

    Raises the error with which the call ended. The caller must call `known.leave()` in every case.
    """
    invocation, following = known.invocation, known.following
    if following is not None:
        try:
            async with asyncio.timeout(None if timeout_s == math.inf else max(0.0, timeout_s)):
                await following.ended.wait()
        except TimeoutError:
            return None
        if isinstance(following.error, TenantDeleted):
            raise following.error
        stored = await in_time(context.store.get(invocation.id))
        invocation = stored or invocation
        if invocation.answer is None:
            raise following.error or UnknownInvocation()
    return done(invocation)


async def progress_of(context: Context, invocation: Invocation) -> Progress:
    """Return the progress of the call, from its stored answer or from the gate. Change nothing."""
    if invocation.answer is None:
        outcome = await (await context.pools.holding(invocation)).link.do(Status(invocation.id))
        now = context.clock.now()
        if isinstance(outcome, Offer):
            return Progress("running", invocation)
        if isinstance(outcome, Over) or (isinstance(outcome, Unknown) and now >= invocation.deadline_at):
            current = await in_time(context.store.get(invocation.id)) or invocation
            invocation = replace(current, answer=current.answer or answer_without(current, outcome, now))
    if invocation.answer is None:  # it waits, or its command is on the way
        return Progress("queued", invocation)
    return Progress(_STATUS_OF[invocation.answer.outcome], invocation)


def done(invocation: Invocation) -> StoredAnswer:
    """Return the answer of a call that is over. Raises the error with which it ended."""
    if invocation.answer is None:
        raise UnknownInvocation()
    if invocation.answer.outcome != "done":
        raise error_of(invocation.answer)
    return invocation.answer


def body_of(invocation: Invocation, answer: StoredAnswer) -> dict[str, Any]:
    """Return the body of a done call's answer, in OpenAI's form."""
    return head_of(invocation).body(choices_of(answer), last_event(answer))


def head_of(invocation: Invocation) -> AnswerHead:
    return AnswerHead(invocation.id, int(invocation.created_at), invocation.model, invocation.endpoint)


def head_of_call(call: Call) -> AnswerHead:
    return AnswerHead(call.id, int(call.created_at), call.request.model, call.request.endpoint)


def rendered(call: Call, collected: Collected) -> dict[str, Any]:
    return head_of_call(call).body(collected.choices(), collected.finished)
