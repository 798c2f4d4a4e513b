"""Finds out which tenant calls, and with which idempotency key."""

from __future__ import annotations

from starlette.requests import Request

from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from functions.envelope import id_of
from functions.http_api.connections import hold_open_request


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def tenant_of(request: Request) -> Tenant:
    """Return the tenant of the request's key, and hold one of its open requests until the answer is sent."""
    context = context_of(request)
    tenant = await context.directory.tenant_of(api_key(request))
    hold_open_request(request, context, tenant.name)
    return tenant


def idempotency_key(request: Request) -> str:
    """Return the idempotency key; empty if the request has none. Raises InvalidRequest."""
    return id_of(request.headers.get("idempotency-key"), "Idempotency-Key") or ""


def api_key(request: Request) -> str | None:
    """Return the key or token of the header `Authorization: Bearer`; None if there is none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None
