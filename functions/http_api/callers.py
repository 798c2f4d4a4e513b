"""Finds out which tenant calls, and with which idempotency key."""

from __future__ import annotations

from starlette.requests import Request

from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from functions.envelope import id_of
from functions.http_api.connections import CONTEXT, hold_open_request

_ADDRESS_CHARS_MAX = 64


def context_of(request: Request) -> Context:
    context: Context = request.scope[CONTEXT]
    return context


async def tenant_of(request: Request) -> Tenant:
    """Return the tenant of the request's key, and hold one of its open requests until the answer is sent."""
    context = context_of(request)
    tenant = await context.directory.tenant_of(api_key(request), _address_of(request))
    hold_open_request(request, context, tenant.identity)
    return tenant


async def owner_of(request: Request) -> Tenant:
    """Return the tenant of the request's key, for a route that shows kept data: a deleted tenant gets none of it.

    `tenant_of` accepts a key for up to a minute after its deletion.
    """
    tenant = await tenant_of(request)
    await context_of(request).directory.check_not_deleted(tenant)
    return tenant


def _address_of(request: Request) -> str:
    """Return the caller's address: the last one in `X-Forwarded-For`, which the nearest proxy has added, or the peer's.

    A caller without a proxy can write any address there. So it is good for limits that have a common bound too, and for
    nothing else.
    """
    forwarded = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()[:_ADDRESS_CHARS_MAX]
    return forwarded or (request.client.host if request.client is not None else "")


def idempotency_key(request: Request) -> str:
    """Return the idempotency key; empty if the request has none. Raises InvalidRequest."""
    return id_of(request.headers.get("idempotency-key"), "Idempotency-Key") or ""


def api_key(request: Request) -> str | None:
    """Return the key or token of the header `Authorization: Bearer`; None if there is none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None
