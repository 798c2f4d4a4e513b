"""headgate-result: takes `{"api_key", "id"}`, returns the status of that invocation, and its answer or its error.

The answer for another tenant's invocation is the same, byte for byte, as for an unknown id.
"""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.errors import InvalidRequest, TenantError, UnknownInvocation
from dispatcher.model.kept import Invocation
from dispatcher.operations.calls.answer import body_of, progress_of
from dispatcher.operations.calls.results import error_of, latest_of_key
from dispatcher.operations.context import Context
from functions.envelope import api_key_of, error_payload, fields_of, id_of
from functions.observability import logger, metrics
from functions.runtime import runtime


@logger.inject_lambda_context
@metrics.log_metrics
def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    payload: dict[str, Any] = runtime().run(result(runtime().context, event))
    return payload


async def result(context: Context, event: Any) -> dict[str, Any]:
    """Return `{"id", "status", "response" or "error"}`, or a tenant's error as a payload."""
    try:
        fields = fields_of(event)
        tenant = await context.directory.tenant_of(api_key_of(fields))
        await context.directory.check_not_deleted(tenant)
        key = id_of(fields.pop("id", None), "id")
        if key is None or fields:
            raise InvalidRequest("The payload is {api_key, id} and nothing else.", "id", "missing_required_parameter")
        with context.limits.open_request(tenant.identity):
            return await _result(context, tenant.identity, key)
    except TenantError as error:
        return error_payload(error)


async def _result(context: Context, tenant: str, key: str) -> dict[str, Any]:
    """Raises UnknownInvocation."""
    invocation = await latest_of_key(context, tenant, key)
    if invocation is None:
        raise UnknownInvocation()
    progress = await progress_of(context, invocation)
    return {"id": key, "status": progress.status, **_outcome(progress.invocation)}


def _outcome(invocation: Invocation) -> dict[str, Any]:
    if invocation.answer is None:
        return {}
    if invocation.answer.outcome == "done":
        return {"response": body_of(invocation, invocation.answer)}
    return {"error": error_of(invocation.answer).body()["error"]}
