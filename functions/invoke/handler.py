"""headgate-invoke: the payload is OpenAI's body with `api_key` and, optionally, `idempotency_key` and `traceparent`.

A tenant's error is a normal payload with `error` and `status`; FunctionError is for headgate's own faults. Lambda
retries an `Event` invoke, and an SDK may retry any invoke. The key (the idempotency key, or else the Lambda request id)
makes the retries one invocation, and `headgate-result` returns its answer. If the function's time ends before the
answer, the invocation stays with the gate, which has it executed; the answer is then `"status": "queued"`, or
`"running"` if a worker runs it already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.fields.parse import parse_request
from dispatcher.model.answers import Collected
from dispatcher.model.commands import Outcome, Waiting
from dispatcher.model.errors import InvalidRequest, NoWorker, TenantError
from dispatcher.operations.calls.answer import body_of, rendered, result_of
from dispatcher.operations.calls.followed import FollowedCall
from dispatcher.operations.calls.submit import Known, NewCall, submit
from dispatcher.operations.context import Context
from functions.ended_calls import EndedCall, write_lines
from functions.envelope import api_key_of, error_payload, fields_of, id_of
from functions.observability import count, logger, metrics
from functions.runtime import runtime

_STARTING_CHECK_S = 5.0
"""While a pool's first worker starts, an invocation looks for it this often."""
MARGIN_S = 5.0
"""The part of the function's time that is reserved to let a waiting invocation go and to answer."""
_ANSWER_S = 3.0
"""The part of MARGIN_S in which an invocation that runs may still end."""


@logger.inject_lambda_context
@metrics.log_metrics
def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    gate = runtime()  # first: in a new sandbox this takes a part of the function's time
    remaining_s = context.get_remaining_time_in_millis() / 1000 - MARGIN_S
    payload: dict[str, Any] = gate.run(invoke(gate.context, event, context.aws_request_id, remaining_s))
    return payload


async def invoke(context: Context, event: Any, request_id: str, remaining_s: float) -> dict[str, Any]:
    """Answer one invocation. It waits until `remaining_s` seconds from now for its turn.

    Raises ServiceError for our own faults.
    """
    until = context.clock.monotonic() + remaining_s
    try:
        fields = fields_of(event)
        tenant = await context.directory.tenant_of(api_key_of(fields))
        key = id_of(fields.pop("idempotency_key", None), "idempotency_key") or request_id
        traceparent = fields.pop("traceparent", "")
        request = parse_request(fields)
        if request.stream:
            message = "lambda.invoke does not stream. Send this request over HTTP, or leave out `stream`."
            raise InvalidRequest(message, "stream", "unsupported_parameter")
        with context.limits.open_request(tenant.identity), context.limits.key_in_flight(tenant.identity, key):
            submitting = partial(submit, context, tenant, request, key, traceparent=str(traceparent))
            submitted = await _submit_once_served(context, request.model, submitting, until)
            return await _answer(context, submitted, key, until)
    except TenantError as error:
        count("refused")
        return error_payload(error)


async def _answer(context: Context, submitted: NewCall | Known, key: str, until: float) -> dict[str, Any]:
    try:
        if isinstance(submitted, Known):
            answer = await result_of(context, submitted, until - context.clock.monotonic())
            return _pending_body(key, submitted.following) if answer is None else body_of(submitted.invocation, answer)
        collected = await _collect_in_time(context, submitted, until)
        if collected is None:
            return _pending_body(key, submitted.following) | _wait_of(submitted.outcome)
    finally:
        submitted.leave()
    tokens, now = collected.output_tokens, context.clock.now()
    write_lines([EndedCall.of("invoke", submitted.following, "done", output_tokens=tokens, ended_at=now)])
    count("output_tokens", tokens)
    return rendered(submitted.call, collected)


async def _submit_once_served(
    context: Context, model: str, submitting: Callable[[], Awaitable[NewCall | Known]], until: float
) -> NewCall | Known:
    """Submit, and wait until `until` for a worker if an empty pool starts one. The deadline begins with the worker.

    Raises NoWorker if none serves in time; then Lambda repeats an Event invoke.
    """
    while True:
        try:
            return await submitting()
        except NoWorker:
            waking = (await context.pools.serving(model)).waking
            is_starting = waking is not None and waking.serves(model)
            if not is_starting or context.clock.monotonic() + _STARTING_CHECK_S >= until:
                raise
        await context.clock.sleep(_STARTING_CHECK_S)


async def _collect_in_time(context: Context, accepted: NewCall, until: float) -> Collected | None:
    """Return the whole answer, or None if it has no turn at `until` (monotonic seconds), or no end _ANSWER_S later.

    An execution does not wait behind many requests of its tenant: they would take the executions of all tenants.
    """
    outcome, following = accepted.outcome, accepted.following
    if isinstance(outcome, Waiting) and outcome.position > context.limit_settings.waiting_executions_max:
        return None
    now = context.clock.monotonic
    turn = asyncio.ensure_future(following.begun.wait())
    reading = asyncio.ensure_future(following.whole())
    try:
        await asyncio.wait({turn, reading}, timeout=max(0.0, until - now()), return_when=asyncio.FIRST_COMPLETED)
        if following.begun.is_set():
            await asyncio.wait({reading}, timeout=max(0.0, until + _ANSWER_S - now()))
        if not reading.done():
            return None
        return await reading
    finally:
        turn.cancel()
        reading.cancel()


def _wait_of(outcome: Outcome) -> dict[str, Any]:
    """Return the place in the queue on arrival, and the wait from then on if it is known."""
    if not isinstance(outcome, Waiting):
        return {}
    wait = {"estimated_wait_s": outcome.wait_s, "estimated_wait_p90_s": outcome.wait_p90_s}
    return {"queue_position": outcome.position, **{name: each for name, each in wait.items() if each is not None}}


def _pending_body(key: str, following: FollowedCall | None) -> dict[str, Any]:
    is_running = following is not None and following.begun.is_set()
    return {"id": key, "status": "running" if is_running else "queued"}
