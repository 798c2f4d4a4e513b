"""The common way of every request for an answer: read the body, submit the request, answer in a form.

A response header has the names of the fields that the gate dropped from the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.fields.parse import Parsed
from dispatcher.model.requests import Request as TenantRequest
from dispatcher.model.tenants import Tenant
from dispatcher.operations.calls.submit import Known, submit
from dispatcher.operations.limits import check_place
from functions.http_api.callers import context_of, idempotency_key
from functions.http_api.connections import hold_key, read_body
from functions.http_api.refusals import name_request
from functions.http_api.routes.replies import FormMaker, replay, respond, respond_streaming

HEADER = "x-headgate-dropped-fields"
HEADER_CHARS_MAX = 2_000
"""Servers and proxies limit the bytes of all headers, often to 8,000."""


async def read_request(request: Request, tenant: Tenant) -> tuple[str, bytes]:
    """Return the idempotency key and the body. Raises Refused at once if the tenant's queue was full just now in
    every pool: the body has the model, which names the pool."""
    context, key = context_of(request), idempotency_key(request)
    if not key:
        queues = ((pool, tenant.identity) for pool in context.pools.names)
        context.limits.full_queues.check_all(queues, context.clock.monotonic())
    return key, await read_body(request, context.limit_settings.body_s)


async def complete(request: Request, tenant: Tenant, parsed: Parsed, key: str, form: FormMaker) -> Response:
    """Submit the request and return its answer, in the form that `form` makes. Raises the error of the request."""
    response = await _answer(request, tenant, parsed.request, key, form)
    _add_dropped_header(response, parsed.dropped)
    return response


async def _answer(request: Request, tenant: Tenant, asked: TenantRequest, key: str, form: FormMaker) -> Response:
    context = context_of(request)
    if key:
        hold_key(request, context, tenant.identity, key)
    submitted = await submit(context, tenant, asked, key, traceparent=request.headers.get("traceparent", ""))
    name_request(request.scope, submitted.invocation.id if isinstance(submitted, Known) else submitted.call.id)
    try:
        following = submitted.following
        if following is not None:
            check_place(context.settings, await following.first(), context.limit_settings.waiting_executions_max)
    except BaseException:
        submitted.leave()
        raise
    if isinstance(submitted, Known):
        return await replay(context, submitted, asked, form, request)
    reply = respond_streaming if asked.stream else respond
    return await reply(context, submitted, form, request)


def _add_dropped_header(response: Response, dropped: Sequence[str]) -> None:
    """Add the header if fields were dropped. Names are separated by commas; other characters than letters, digits and
    . _ - ~ are percent-encoded. Names beyond HEADER_CHARS_MAX are replaced by "..."."""
    if not dropped:
        return
    text = ", ".join(quote(name, safe="") for name in dropped)
    if len(text) > HEADER_CHARS_MAX:
        text = text[:HEADER_CHARS_MAX].rpartition(", ")[0] + ", ..."
    response.headers[HEADER] = text
