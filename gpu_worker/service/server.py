"""The worker's HTTP face: reachable by the gate alone, which proves itself by a signed grant.

POST /v1/execute   a work order under `Authorization: Bearer <grant>`; answers NDJSON, line by line
GET  /stats        what runs, by tenant and tier, for the local stack's live view; under the same fleet's signature
GET  /metrics      for Prometheus (metrics.py), under a token of its own
GET  /health       200 while the process serves; says nothing else
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from hashlib import sha256

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dispatcher.model.execution_token import ExecutionTokenRefused, verify
from dispatcher.model.worker_protocol import WorkRefused
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Clock
from dispatcher.worker_wire import BODY_BYTES_MAX, OrderRefused, encode_event, parse_order
from gpu_worker.service.executions import Executions, Refusal
from gpu_worker.service.metrics import make_registry
from gpu_worker.service.streaming import LinesResponse

BODY_S = 10.0
"""How long an order may take to arrive: nobody has shown a grant yet."""


def make_app(executions: Executions, *, worker_id: str, secret: bytes, clock: Clock) -> Starlette:
    registry = make_registry(executions)

    async def execute(request: Request) -> Response:
        body = await _body(request)
        grant = verify(_bearer(request), secret, worker=worker_id, body=body, now=clock.now())
        order = parse_order(body)
        if order.execution != grant.execution or order.slot != grant.slot:
            raise ExecutionTokenRefused("the grant is for another execution")
        lines = executions.run(executions.claim(order))
        # Begun here, not when the answer is sent: from its first line on, closing it gives the slot back.
        first = await anext(lines)
        return LinesResponse(first, lines, name=order.execution, deadline_at=order.deadline_at, clock=clock)

    async def stats(request: Request) -> Response:
        if not hmac.compare_digest(_bearer(request).encode(), stats_token(secret).encode()):
            raise ExecutionTokenRefused("not this fleet's")
        told = executions.engine.stats()
        tenants = {name: asdict(tenant) for name, tenant in told.tenants.items()}
        tiers = {tier: asdict(now) for tier, now in told.now.tiers.items()}
        shed = [tier for tier in Tier if executions.watch.shedder.sheds(tier)]
        counts = {"waiting": told.waiting, "running": told.running, "kv_use": told.kv_use}
        return JSONResponse({**counts, "tenants": tenants, "tiers": tiers, "shed": shed})

    async def metrics(request: Request) -> Response:
        if not hmac.compare_digest(_bearer(request).encode(), metrics_token(secret).encode()):
            raise ExecutionTokenRefused("not this fleet's")
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        Route("/v1/execute", execute, methods=["POST"]),
        Route("/stats", stats, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def stats_token(secret: bytes) -> str:
    """What opens /stats: derived from the fleet's secret, good for nothing else."""
    return hmac.new(secret, b"stats", sha256).hexdigest()


def metrics_token(secret: bytes) -> str:
    """What opens /metrics, for Prometheus to send as a bearer token: `printf metrics | openssl dgst -sha256 -hmac
    "$HEADGATE_WORKER_SECRET"` tells it. A worker is reachable from inside the VPC alone, but tenants' names are in the
    figures, and a scraper should be able to read figures and nothing else."""
    return hmac.new(secret, b"metrics", sha256).hexdigest()


async def _body(request: Request) -> bytes:
    """Read no further than the bound, and no longer. Raises Refusal, ClientDisconnect."""
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                received += part
                if len(received) > BODY_BYTES_MAX:
                    raise Refusal(413, "request_too_large", "The work order is too large.")
    except TimeoutError:
        raise Refusal(503, "request_too_slow", "The work order did not arrive in time.") from None
    return bytes(received)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


def _error(status: int, code: str, message: str, retry_after_s: float | None = None) -> Response:
    body = encode_event(WorkRefused(status, code, message, retry_after_s))
    headers = {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    return Response(body, status, headers, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return _error(error.status, error.code, str(error), error.retry_after_s)
    if isinstance(error, OrderRefused):
        return _error(422, "invalid_order", str(error))
    return _error(401, "grant_refused", "The grant was refused.")


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # to nobody


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    Refusal: _refused,
    OrderRefused: _refused,
    ExecutionTokenRefused: _refused,
    ClientDisconnect: _gone,
}
