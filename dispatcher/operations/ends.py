"""Ends a call by its end in the log, for a caller that did not get the worker's last event.

A durable call has a stored answer, and the caller gets the missing rest of it. For any other call the log has the token
counts. If all tokens arrived, the answer is complete; otherwise the caller gets an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.model.collected import Collected, tokens_of
from dispatcher.model.commands import Over, Refused
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
from dispatcher.model.invocation import StoredAnswer
from dispatcher.model.unanswered import answer_of_outcome, error_of_outcome
from dispatcher.model.worker_protocol import Finished, WorkEvent
from dispatcher.operations.answer_events import AnswerEvents
from dispatcher.operations.calls import Call
from dispatcher.operations.context import Context
from dispatcher.operations.results import choices_of, error_of, last_event

CUT_OFF = "The gate ended this request, because it got no message from this server for too long. Send it again."


async def end_in_log(context: Context, call: Call, over: Over, events: AnswerEvents) -> AnsweredError | None:
    """Give the caller the missing rest of its answer. Return the error with which the call ends, or None."""
    answer = await kept_answer(context, call, over)
    if answer is not None:
        return _rest_of(answer, events) if answer.outcome == "done" else error_of(answer)
    if over.outcome == "done" and over.output_tokens == events.collected.output_tokens:
        events.put_now(Finished(_reason(call, over, events.collected), over.input_tokens, over.output_tokens))
        return None
    if over.outcome == "cancelled" and not call.is_durable:
        return WorkerFailed(CUT_OFF)
    return error_of_outcome(over.outcome)


async def kept_answer(context: Context, call: Call, over: Over) -> StoredAnswer | None:
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
        events.put_now(event)
    return None


def _without_reasons(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "reason"} for each in choices]


def _reason(call: Call, over: Over, got: Collected) -> str:
    """Return the reason of an end in the log, which has only the counts."""
    if "tool_calls" in got.choices()[0].get("delta", {}):
        return "tool_calls"
    return "length" if over.output_tokens >= call.limit.max_tokens * call.request.choices else "stop"
