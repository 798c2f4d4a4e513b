"""The worker's HTTP server. Only the gate can use it: each order carries a signed execution token, valid once.

POST /v1/execute   a work order, with `Authorization: Bearer <execution token>`; the answer is NDJSON, line by line
GET  /stats        requests and service by tenant and tier, for the local stack's live view; needs `stats_token`
GET  /metrics      for Prometheus (metrics.py); needs `metrics_token`
GET  /health       200 while the process serves, also while its model is loading (Opening)

If the gate stops reading the lines of an execution, the execution soon ends.

An orchestrator that asks whether the process lives must not kill it while a large model loads. One that asks whether it
serves, as ECS does for a deployment (infra/fleet/gpu_fleet.py), reads the status: "ok" when the model is loaded.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict
from hashlib import sha256
from math import inf

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.model.fleet_secrets import ExecutionTokenRefused, FleetSecrets, verify
from dispatcher.model.worker_protocol import WorkOrder, WorkRefused
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Clock
from dispatcher.workers.wire import BODY_BYTES_MAX, OrderRefused, encode_event, parse_order
from gpu_worker.service.executions.executions import Executions, Refusal
from gpu_worker.service.metrics import make_registry


class Opening:
    """Answers all requests itself until `open` is called: GET /health with 200 and the status "loading", everything
    else with 503."""

    def __init__(self) -> None:
        self._app: ASGIApp = _loading

    def open(self, app: ASGIApp) -> None:
        """Let `app` answer all further requests."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope)
    is_health = request.url.path == "/health" and request.method == "GET"
    answer = JSONResponse({"status": "loading"}, 200 if is_health else 503)
    await answer(scope, receive, send)


logger = logging.getLogger("headgate.worker")

BODY_S = 10.0
"""The longest time for an order to arrive. Its token is checked after that."""
STALLED_S = 20.0
"""The longest time for the gate to accept one line. The output that is generated meanwhile is bounded by the order's
max_tokens. At most one line waits here, besides the server's send buffer."""
_LATE_S = 1.0
"""The same time after the deadline, when only the last event is left to send."""
_LOOK_S = 0.5
"""The time between two looks at whether a line is stalled."""


class LinesResponse(StreamingResponse):
    """Sends `first` and then `lines`, and closes `lines` whenever the connection ends, in whatever way. This ends the
    execution, unless it is durable.

    A stream has a timer for all its lines: a time limit of its own for each would cost as much as the line.
    """

    def __init__(
        self, first: bytes | None, lines: AsyncGenerator[bytes, None], *, name: str, deadline_at: float, clock: Clock
    ) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._first, self._lines = first, lines
        self._name = name
        self._deadline_at = deadline_at
        self._clock = clock
        self._sending_until_s = inf
        """The time at which the line that is being sent counts as stalled, in monotonic seconds."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(None) as limit:
                watches = self._watch_stalls(limit), _watch_connection(receive, limit)
                watching = [asyncio.ensure_future(each) for each in watches]
                try:
                    await self._send(send)
                finally:
                    for each in watching:
                        each.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            # After this return the server closes the connection, and the gate gets an incomplete answer.
            if self._clock.monotonic() >= self._sending_until_s:
                logger.warning("the gate does not read the answer", extra={"execution": self._name})
        finally:
            await self._lines.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first is not None:
            await self._send_line(send, self._first)
        async for line in self._lines:
            await self._send_line(send, line)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_line(self, send: Send, line: bytes) -> None:
        patience_s = max(_LATE_S, min(STALLED_S, self._deadline_at - self._clock.now()))
        self._sending_until_s = self._clock.monotonic() + patience_s
        await send({"type": "http.response.body", "body": line, "more_body": True})
        self._sending_until_s = inf

    async def _watch_stalls(self, limit: asyncio.Timeout) -> None:
        """End the answer when a line was not taken in time."""
        while self._clock.monotonic() < self._sending_until_s:
            await self._clock.sleep(_LOOK_S)
        limit.reschedule(0.0)


async def _watch_connection(receive: Receive, limit: asyncio.Timeout) -> None:
    """End the answer when the gate closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(0.0)


def make_app(executions: Executions, *, worker_id: str, secrets: FleetSecrets, clock: Clock) -> Starlette:
    registry = make_registry(executions)

    async def execute(request: Request) -> Response:
        body = await _body(request)
        token = verify(_bearer(request), secrets, worker=worker_id, body=body, now=clock.now())
        order = _order(body)
        if isinstance(order, WorkOrder) and order.execution != token.execution:
            raise ExecutionTokenRefused("the execution token is for another execution")
        lines = executions.run(token, order)
        # The first line is read here, before the answer is sent: from then on, closing the generator frees the slot.
        first = await anext(lines, None)
        deadline_at = order.terms.deadline_at if isinstance(order, WorkOrder) else clock.now()
        return LinesResponse(first, lines, name=token.execution, deadline_at=deadline_at, clock=clock)

    async def engine_stats(request: Request) -> Response:
        _check(request, secrets, stats_token)
        stats = executions.engine.stats()
        tenants = {name: asdict(tenant) for name, tenant in stats.tenants.items()}
        tiers = {tier: asdict(gauges) for tier, gauges in stats.gauges.tiers.items()}
        shed = [tier for tier in Tier if executions.watch.shedder.sheds(tier)]
        counts = {"waiting": stats.waiting, "running": stats.running, "kv_use": stats.kv_use}
        return JSONResponse({**counts, "tenants": tenants, "tiers": tiers, "shed": shed})

    async def metrics(request: Request) -> Response:
        _check(request, secrets, metrics_token)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        Route("/v1/execute", execute, methods=["POST"]),
        Route("/stats", engine_stats, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers=_HANDLERS)


def _check(request: Request, secrets: FleetSecrets, token_of: Callable[[bytes], str]) -> None:
    """Raises ExecutionTokenRefused unless the request has the token that `token_of` derives from one of the secrets."""
    token = _bearer(request).encode()
    if not secrets.accepts(lambda secret: hmac.compare_digest(token, token_of(secret).encode())):
        raise ExecutionTokenRefused("not this fleet's")


def stats_token(secret: bytes) -> str:
    """Return the bearer token of /stats, derived from the fleet's secret. It is valid for nothing else."""
    return hmac.new(secret, b"stats", sha256).hexdigest()


def metrics_token(secret: bytes) -> str:
    """Return the bearer token of /metrics for Prometheus, as `printf metrics | openssl dgst -sha256 -hmac
    "$HEADGATE_WORKER_SECRET"` prints it for one secret. /metrics needs a token because it names tenants. The
    token is valid for nothing else, so a scraper can read only the metrics."""
    return hmac.new(secret, b"metrics", sha256).hexdigest()


def _order(body: bytes) -> WorkOrder | OrderRefused:
    try:
        return parse_order(body)
    except OrderRefused as refused:
        return refused


async def _body(request: Request) -> bytes:
    """Read the body, at most BODY_BYTES_MAX bytes and BODY_S seconds. Raises Refusal, ClientDisconnect."""
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


def _error(status: int, code: str, message: str) -> Response:
    return Response(encode_event(WorkRefused(status, code, message)), status, media_type="application/json")


async def _on_refusal(_: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return _error(error.status, error.code, str(error))
    return _error(401, "grant_refused", "The execution token was refused.")


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # the client is gone


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    Refusal: _on_refusal,
    ExecutionTokenRefused: _on_refusal,
    ClientDisconnect: _on_disconnect,
}
