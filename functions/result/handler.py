"""headgate-result: takes `{"api_key", "id"}`, returns the status of that invocation, and its answer or its error.

The answer for another tenant's invocation is the same, byte for byte, as for an unknown id.
"""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.errors import InvalidRequest, TenantError, UnknownInvocation
from dispatcher.model.old_invocation import Invocation, State
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.results import cancelled
from dispatcher.old_operations.submit import latest
from functions.envelope import api_key_of, error_payload, fields_of, id_of
from functions.observability import logger, metrics, tracer
from functions.runtime import runtime

STATUS_OF = {
    State.QUEUED: "queued",
    State.RUNNING: "running",
    State.DONE: "done",
    State.FAILED: "failed",
    State.EXPIRED: "expired",
    State.CANCELLED: "failed",
}


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    payload: dict[str, Any] = runtime().run(result(runtime().context, event))
    return payload


async def result(context: Context, event: Any) -> dict[str, Any]:
    """Return `{"id", "status", "response" or "error"}`, or a tenant's error as a payload."""
    try:
        fields = fields_of(event)
        tenant = await context.directory.tenant_of(api_key_of(fields))
        invocation_id = id_of(fields.pop("id", None), "id")
        if invocation_id is None or fields:
            raise InvalidRequest("The payload is {api_key, id} and nothing else.", "id", "missing_required_parameter")
        invocation = await latest(context, tenant.name, invocation_id)
        if invocation is None:
            raise UnknownInvocation()
    except TenantError as error:
        return error_payload(error)
    return {"id": invocation_id, "status": STATUS_OF[invocation.state], **_outcome(invocation)}


def _outcome(invocation: Invocation) -> dict[str, Any]:
    if invocation.state is State.CANCELLED:
        return cancelled().body()
    if invocation.result is None:
        return {}
    body = json.loads(invocation.result.body)
    return {"response": body} if invocation.state is State.DONE else {"error": body["error"]}
