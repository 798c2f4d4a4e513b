"""headgate-invoke: the payload is OpenAI's body with `api_key` and, optionally, `idempotency_key` beside it.

A tenant's error is a normal payload with `error` and `status`; FunctionError is for headgate's own faults. Lambda
retries an `Event` invoke, and an SDK may retry any invoke. The id (the idempotency key, or else the Lambda request id)
makes the retries one invocation, and `headgate-result` returns its answer. If the function's time ends before the
dispatch, the invocation stays in its queue and the SQS consumer executes it; the answer is then `"status": "queued"`.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.errors import InvalidRequest, TenantError
from dispatcher.model.old_invocation import Result
from dispatcher.model.old_outcomes import Dispatched, Known, Queued
from dispatcher.old_operations.answer import answer, result_of, wait_or_detach
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.execute import Collected, Render
from dispatcher.old_operations.submit import Submission, submit
from dispatcher.wire import parse_request
from functions.envelope import api_key_of, error_payload, fields_of, id_of
from functions.observability import count, log_ended, logger, metrics, tracer
from functions.rendering import rendering
from functions.runtime import runtime

MARGIN_S = 5.0
"""The part of the function's time that is reserved to detach a waiting invocation and to answer."""


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    remaining_s = context.get_remaining_time_in_millis() / 1000 - MARGIN_S
    work = invoke(runtime().context, event, context.aws_request_id, remaining_s)
    payload: dict[str, Any] = runtime().run(work)
    return payload


async def invoke(context: Context, event: Any, request_id: str, remaining_s: float) -> dict[str, Any]:
    """Answer one invocation within `remaining_s` seconds. Raises ServiceError for headgate's own faults."""
    try:
        return await _invoke(context, event, request_id, remaining_s)
    except TenantError as error:
        count("refused")
        return error_payload(error)


async def _invoke(context: Context, event: Any, request_id: str, remaining_s: float) -> dict[str, Any]:
    fields = fields_of(event)
    tenant = await context.directory.tenant_of(api_key_of(fields))
    invocation_id = id_of(fields.pop("idempotency_key", None), "idempotency_key") or request_id
    request = parse_request(fields)
    if request.stream:
        raise InvalidRequest("lambda.invoke does not stream; use the HTTP face.", "stream", "unsupported_parameter")
    deadline_s = context.settings.deadline_s
    submission = Submission(tenant, request, invocation_id, deadline_s, keep_body=True, keep_answer=True)
    accepted = await submit(context, submission)
    if isinstance(accepted, Known):
        return _payload(await result_of(context, accepted, remaining_s))
    render = rendering(accepted.invocation, chat=request.chat)
    collected = await _collected(context, submission, accepted, render, remaining_s)
    if collected is None:
        return {"id": invocation_id, "status": "queued"}
    elapsed_ms = (context.clock.now() - accepted.invocation.arrived_at) * 1000
    log_ended("invoke", accepted.invocation, "done", ttft_ms=None, duration_ms=elapsed_ms)
    count("output_tokens", collected.output_tokens)
    return _payload(render(collected))


async def _collected(
    context: Context, submission: Submission, accepted: Dispatched | Queued, render: Render, remaining_s: float
) -> Collected | None:
    """Return the whole answer, or None if it was not dispatched in time and the SQS consumer executes it."""
    if isinstance(accepted, Queued):
        running = await wait_or_detach(context, accepted.invocation, remaining_s)
        if running is None:
            return None
        accepted = running
    collected = Collected()
    async with aclosing(answer(context, submission, accepted, render)) as events:
        async for item in events:
            collected.note(item)
    return collected


def _payload(result: Result) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(result.body)
    return payload
