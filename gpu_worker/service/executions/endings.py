"""Decides how an execution's end is reported: the command for the log, and the last event for the caller. Pure.

| end | command | last event |
| --- | --- | --- |
| the engine finished | End "done" | Finished |
| the caller closed the stream of a call that is not durable | End "cancelled" | none |
| the deadline passed | End "expired" | WorkRefused 504, final |
| the engine refused or evicted the request | End "failed" | WorkRefused 4xx or 503, final |
| the engine is overloaded at a second attempt | End "failed" | WorkRefused 429 or 503, final |
| the engine failed, is overloaded, or the worker gave up | Return | WorkRefused 5xx, not final |
| the same, and a streaming caller without a key has a token | End "failed" | WorkRefused 5xx, final |
| the log does not hold the attempt | none | none |

If a call is durable or not streamed, its failed attempt is returned even after the first token, because another attempt
can generate the whole answer. The tokens of a returned attempt are not charged. If the engine refuses or evicts a
request before its first token, the prompt is not charged.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

from dispatcher.model.answers import DEADLINE_EXCEEDED, RESULT_TOO_LARGE, error_body, error_of_refusal
from dispatcher.model.commands import Done, End, Outcome, Over, Return
from dispatcher.model.worker_protocol import Finished, WorkRefused
from gpu_worker.engines.interface import EngineError
from gpu_worker.service.executions.execution import ANSWER_BYTES_MAX, Abort, Execution
from gpu_worker.service.health.failures import OVERLOADED, REFUSED_AS, FailureKind, kind_of, overload_status

_OWN_FAULTS = frozenset({400, 413, 422})
"""Statuses of a server for faults of the request; the tenant gets the server's own."""
_RATE_WINDOW_S = 60.0
"""The Retry-After of a request that the RPM policy refuses. The policy counts the requests of a minute."""
OVERLOADED_RETRY_S = 2.0
"""The Retry-After of a request that an overloaded engine refuses without one, in seconds."""
_EARLY_S = 1.0
"""An engine may end a request this long before its deadline, because it uses a clock of its own."""
_EXPIRED = WorkRefused(504, DEADLINE_EXCEEDED, "The deadline passed before the answer was complete.", final=True)


class Ending(NamedTuple):
    report: End | Return | None
    event: Finished | WorkRefused | None


def ending(execution: Execution, worker: str, now: float, preempted_retry_s: float) -> Ending:
    """Return the ending of an execution that has a result. `now` is in Unix seconds. `preempted_retry_s` is the
    Retry-After of an evicted request, in seconds."""
    result = execution.result
    if result is None:
        raise ValueError("the engine has not ended this execution yet")
    if execution.abort is Abort.LEASE_LOST:
        return Ending(None, None)
    if execution.caller_left and not execution.order.terms.durable:
        return Ending(_end(execution, "cancelled"), None)
    if isinstance(result, EngineError):
        return _engine_error(execution, result, worker, preempted_retry_s)
    if result.reason != "aborted":
        return _success_ending(execution, result)
    return _abort_ending(execution, worker, now)


def confirms(report: End | Return, outcome: Outcome) -> bool:
    """Return whether the log agrees with the last event. If a later attempt has replaced this one, it does not."""
    if isinstance(report, Return) or isinstance(outcome, Done):
        return True
    return isinstance(outcome, Over) and (outcome.attempt, outcome.outcome) == (report.attempt, report.outcome)


def outcome_of(report: End | Return) -> str:
    """Return the report's outcome or reason, for the log."""
    return report.outcome if isinstance(report, End) else report.reason


def _success_ending(execution: Execution, finished: Finished) -> Ending:
    if not execution.order.terms.durable:
        return Ending(_end(execution, "done"), finished)
    details = {"cached_tokens": finished.cached_tokens, "reasoning_tokens": finished.reasoning_tokens}
    details["adapter_loaded"] = execution.adapter_loaded
    kept = {"choices": execution.collected.choices(), **{name: count for name, count in details.items() if count}}
    answer = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
    if execution.is_too_long or len(answer.encode()) > ANSWER_BYTES_MAX:
        message = f"The answer is longer than {ANSWER_BYTES_MAX} bytes and was not kept; stream it instead."
        return _failure_ending(execution, WorkRefused(500, RESULT_TOO_LARGE, message, final=True))
    return Ending(_end(execution, "done")._replace(answer=answer), finished)


def _engine_error(execution: Execution, error: EngineError, worker: str, preempted_retry_s: float) -> Ending:
    kind = kind_of(error)
    if kind is FailureKind.OVERLOAD:
        return _overload_ending(execution, error, worker)
    if kind is not FailureKind.REQUEST:
        return _gave_up(execution, worker, "failed", WorkRefused(500, error.code, error.message))
    status = error.status if error.status in _OWN_FAULTS else REFUSED_AS[error.code]
    retry_after_s = {503: preempted_retry_s, 429: _RATE_WINDOW_S}.get(status)
    return _failure_ending(execution, WorkRefused(status, error.code, error.message, retry_after_s, final=True))


def _overload_ending(execution: Execution, error: EngineError, worker: str) -> Ending:
    """Return the first attempt, because another worker's engine may take the request. End the call after a later one:
    its caller gets the engine's status and Retry-After."""
    after_s = OVERLOADED_RETRY_S if error.retry_after_s is None else error.retry_after_s
    event = WorkRefused(overload_status(error), OVERLOADED, error.message, after_s)
    if execution.order.attempt > 1:
        return _failure_ending(execution, replace(event, final=True))
    return _gave_up(execution, worker, "refused", event)


def _abort_ending(execution: Execution, worker: str, now: float) -> Ending:
    if execution.abort is Abort.LATE or (
        execution.abort is None and now >= execution.order.terms.deadline_at - _EARLY_S
    ):
        return Ending(_with_answer(execution, _end(execution, "expired"), _EXPIRED), _EXPIRED)
    if execution.abort is Abort.DRAINED:
        return _gave_up(execution, worker, "refused", WorkRefused(503, "draining", "This worker stops."))
    if execution.abort is Abort.SWAPPED:
        event = WorkRefused(503, "draining", "This worker loads another model.")
        return _gave_up(execution, worker, "refused", event)
    if execution.abort is Abort.CUT_OFF:
        return _gave_up(execution, worker, "lost", WorkRefused(503, "cut_off", "This worker cannot reach its gate."))
    return _gave_up(execution, worker, "failed", WorkRefused(500, "engine_stopped", "The engine ended the request."))


def _gave_up(execution: Execution, worker: str, reason: str, event: WorkRefused) -> Ending:
    """Return the attempt. But end it if its caller streams, has tokens, and cannot get the answer in another way."""
    if execution.output_tokens and execution.order.streamed and not execution.order.terms.durable:
        return _failure_ending(execution, replace(event, final=True))
    return Ending(Return(execution.order.invocation, execution.order.attempt, reason, worker), event)


def _failure_ending(execution: Execution, event: WorkRefused) -> Ending:
    end = _end(execution, "failed")
    if not end.output_tokens:
        end = end._replace(input_tokens=0, cached_tokens=0)
    return Ending(_with_answer(execution, end, event), event)


def _end(execution: Execution, outcome: str) -> End:
    order = execution.order
    return End(
        id=order.invocation,
        attempt=order.attempt,
        outcome=outcome,
        input_tokens=execution.input_tokens,
        output_tokens=execution.output_tokens,
        tenant=order.terms.tenant,
        first_token_s=execution.first_token_s,
        cached_tokens=execution.cached_tokens,
        adapter_loaded=execution.adapter_loaded,
    )


def _with_answer(execution: Execution, end: End, event: WorkRefused) -> End:
    return end._replace(answer=error_body(error_of_refusal(event))) if execution.order.terms.durable else end


def refused(call_id: str, attempt: int, worker: str, event: WorkRefused, tenant: str = "") -> End | Return:
    """Return the report of an attempt that reached the worker and is refused before it begins."""
    if not event.final:
        return Return(call_id, attempt, "refused", worker)
    return End(call_id, attempt, "failed", 0, 0, tenant, error_body(error_of_refusal(event)))
