"""Ends a call without the worker's last event: by its end in the log, or by taking it out of the gate.

A durable call that has ended in the log has a stored answer, and the caller gets the missing rest of it. For any other
call the log has the token counts. If all tokens arrived, the answer is complete; otherwise the caller gets an error.

A call that its callers left, or that is late, is taken out of the gate so that none of its offers stays open. `begun`
is the highest attempt that this process has begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.model.answers import Collected, answer_of_outcome, error_of_outcome, tokens_of
from dispatcher.model.commands import Cancel, Done, Offer, Outcome, Over, Refused, Return, Status, Unknown, Waiting
from dispatcher.model.errors import (
    INTERNAL_ERROR,
    STORE_UNAVAILABLE,
    AnsweredError,
    NoWorker,
    ServiceError,
    StoreUnavailable,
    WorkerFailed,
)
from dispatcher.model.errors import Refused as RefusedError
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.worker_protocol import Finished, WorkEvent
from dispatcher.operations.calls.call import Call, accept_of
from dispatcher.operations.calls.followed import AnswerEvents
from dispatcher.operations.calls.results import choices_of, error_of, last_event
from dispatcher.operations.context import Context

_CUT_OFF = "The gate ended this request, because it got no message from this server for too long. Send it again."
_TAKE_BACK_S = 1.0
TAKE_BACK_MAX_S = 8.0
"""The first and the longest pause between two tries of `take_back`. Each pause is twice as long as the one before."""


async def end_in_log(context: Context, call: Call, over: Over, events: AnswerEvents) -> AnsweredError | None:
    """Give the caller the missing rest of its answer. Return the error with which the call ends, or None."""
    answer = await _kept_answer(context, call, over)
    if answer is not None:
        return _rest_of(answer, events) if answer.outcome == "done" else error_of(answer)
    if over.outcome == "done" and over.output_tokens == events.collected.output_tokens:
        events.put(Finished(_reason(call, over, events.collected), over.input_tokens, over.output_tokens))
        return None
    if over.outcome == "cancelled" and not call.is_durable:
        return WorkerFailed(_CUT_OFF)
    return error_of_outcome(over.outcome)


async def _kept_answer(context: Context, call: Call, over: Over) -> StoredAnswer | None:
    """Return the stored answer of a durable call, or None for other calls. If there is no answer, store one."""
    if not call.is_durable:
        return None
    return await context.store.answer(call.id, answer_of_outcome(over, context.clock.now()))


def error_of_refused(refused: Refused) -> AnsweredError:
    """Return the error of a command that the gate refused."""
    if refused.code == "no_worker":
        return NoWorker(refused.message)
    if refused.code == STORE_UNAVAILABLE:
        return StoreUnavailable(refused.message)
    if refused.code == INTERNAL_ERROR:
        return ServiceError(refused.message, INTERNAL_ERROR, retry_after_s=refused.retry_after_s)
    return RefusedError(refused.message, refused.code, refused.retry_after_s)


def _rest_of(answer: StoredAnswer, events: AnswerEvents) -> AnsweredError | None:
    """Deliver the rest of a stored answer. Return an error if the caller already has tokens of another text."""
    if not events.is_partly_delivered:
        events.begin()
    choices, got = choices_of(answer), events.collected
    if not events.is_partly_delivered:
        rest = tokens_of(choices, answer.output_tokens)
    elif got.is_plain and len(choices) == 1 and choices[0]["text"].startswith(got.text):
        rest = tokens_of([{**choices[0], "text": choices[0]["text"][len(got.text) :]}], answer.output_tokens)
    elif got.output_tokens == answer.output_tokens and _without_reasons(got.choices()) == _without_reasons(choices):
        rest = []
    else:
        return error_of_outcome("done")
    complete: list[WorkEvent] = [*rest, last_event(answer)]
    for event in complete:
        events.put(event)
    return None


def _without_reasons(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "reason"} for each in choices]


def _reason(call: Call, over: Over, got: Collected) -> str:
    """Return the reason of an end in the log, which has only the counts."""
    if "tool_calls" in got.choices()[0].get("delta", {}):
        return "tool_calls"
    return "length" if over.output_tokens >= call.limit.max_tokens * call.request.choices else "stop"


async def give_back(context: Context, call: Call, attempt: int, worker: str) -> Outcome | None:
    """Return an attempt to the gate that no worker has begun. Only this process could have begun it. Return the call's
    state after that."""
    outcome = await context.link(call.pool).do(Return(call.id, attempt, "unreachable", worker))
    if isinstance(outcome, Refused):
        return None
    # The gate knows whether there is a next attempt, even if it does not know this one.
    return await context.link(call.pool).do(Status(call.id)) if isinstance(outcome, Unknown | Done) else outcome


async def cancel(context: Context, call: Call, outcome: str, begun: int) -> None:
    """Cancel the call. If the gate has offered a newer attempt meanwhile, return that attempt at once."""
    cancelled = await context.link(call.pool).do(Cancel(call.id, outcome))
    if isinstance(cancelled, Done):
        cancelled = await context.link(call.pool).do(Status(call.id))
    if isinstance(cancelled, Offer) and cancelled.attempt > begun:
        await context.link(call.pool).do(Return(call.id, cancelled.attempt, "declined", cancelled.worker))
    elif isinstance(cancelled, Over):
        await _kept_answer(context, call, cancelled)


async def let_go(context: Context, call: Call, begun: int) -> None:
    """Stop holding a durable call. If the gate has offered an attempt above `begun`, launch it for an executor."""
    outcome = await context.link(call.pool).do(accept_of(call, ""))
    if isinstance(outcome, Offer) and outcome.attempt > begun:
        await context.launcher.launch(call.id, outcome.attempt)


async def take_back(context: Context, call: Call, begun: int) -> None:
    """Cancel a call, or stop holding a durable one, after a command without an answer. The command may be in the log.

    Otherwise the gate would offer the call again and again, and nothing would begin the offers. Each would hold a slot
    for a while, and suspend all calls of this process. So this goes on until the gate answers, or until the call's
    deadline, at which the gate ends the call.
    """
    pause_s = _TAKE_BACK_S
    while True:
        try:
            # Status comes before Cancel: within an entry, a Cancel is decided before the Accept of the same call, and a
            # Status after it.
            outcome = await context.link(call.pool).do(Status(call.id))
            if not isinstance(outcome, Waiting | Offer):
                return None
            if call.is_durable:
                return await _let_go_unless_followed(context, call, begun)
            return await cancel(context, call, "cancelled", begun)
        except StoreUnavailable:
            if context.clock.now() >= call.terms.deadline_at:
                return None
            await context.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, TAKE_BACK_MAX_S)


async def _let_go_unless_followed(context: Context, call: Call, begun: int) -> None:
    """Stop holding a call, unless this process follows it again: a repetition of its key may have begun that."""
    following = context.durable_calls.get(call.id)
    if following is not None and not following.is_over:
        return
    try:
        await let_go(context, call, begun)
    finally:
        if call.id not in context.durable_calls:
            context.link(call.pool).forget(call.id)  # its Accept has made the link keep news of the call again
