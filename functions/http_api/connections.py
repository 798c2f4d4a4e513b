"""The bounds on connections: how many requests are open, how slowly a caller may send and read.

uvicorn hands a request over when its head has arrived. What follows is bounded here: a body arrives within
LimitSettings.body_s, and a caller that does not read for LimitSettings.send_s is disconnected.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.model.errors import Refused, RequestTooLarge, SlowRequest
from dispatcher.operations.context import Context
from dispatcher.operations.limits import RETRY_AFTER_S
from dispatcher.strict_json import BODY_BYTES_MAX
from functions.http_api.heads import check_encoding
from functions.http_api.refusals import error_response
from functions.observability import logger

UNBOUNDED = ("/health", "/ready")
"""The paths that are answered however many requests are open."""
HELD = "headgate.held"
"""The key in the scope of what the request holds of the limits, until its last byte is sent."""


class _BoundedSend:
    """Cancels a send that takes longer than `send_s`: the caller does not read. `is_slow`: it did so.

    One timer watches all sends of an answer; most of them end at once.
    """

    def __init__(self, send: Send, send_s: float) -> None:
        self.is_slow = False
        self._send = send
        self._send_s = send_s
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[Any] | None = None
        self._since = 0.0
        self._timer = self._loop.call_later(send_s, self._check)

    async def __call__(self, message: Message) -> None:
        self._sending, self._since = asyncio.current_task(), self._loop.time()
        try:
            await self._send(message)
        finally:
            self._sending = None

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        since = self._loop.time() if self._sending is None else self._since
        if self._sending is not None and self._loop.time() >= since + self._send_s:
            self.is_slow = True
            self._sending.cancel()
        else:
            self._timer = self._loop.call_at(since + self._send_s, self._check)


class BoundedConnections:
    """ASGI middleware. A request holds its limits until its answer is sent: only CORS and heads are outside of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNBOUNDED:
            return await self._app(scope, receive, send)
        context: Context = scope["app"].state.context
        if self._open >= context.limit_settings.process_requests_max:
            return await _busy()(scope, receive, send)
        self._open += 1
        try:
            with ExitStack() as held:
                scope[HELD] = held
                await self._serve(context, scope, receive, send)
        finally:
            self._open -= 1
        return None

    async def _serve(self, context: Context, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request. A caller that does not read is disconnected: the answer ends without its end."""
        bounded = _BoundedSend(send, context.limit_settings.send_s)
        try:
            await self._app(scope, receive, bounded)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not bounded.is_slow or task is None or task.uncancel():
                raise
        finally:
            bounded.close()
            if bounded.is_slow:
                logger.warning("disconnected a caller that does not read", extra={"path": scope["path"][:100]})


def hold_open_request(request: Request, context: Context, tenant: str) -> None:
    """Hold one of the tenant's open requests until the answer is sent. Raises Refused."""
    request.scope[HELD].enter_context(context.limits.open_request(tenant))


def hold_key(request: Request, context: Context, tenant: str, key: str) -> None:
    """Hold one of the requests under an idempotency key until the answer is sent. Raises Refused."""
    request.scope[HELD].enter_context(context.limits.key_in_flight(tenant, key))


async def read_body(request: Request, within_s: float, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Read the body, up to `bytes_max`. Raises EncodedRequest, RequestTooLarge, SlowRequest, ClientDisconnect."""
    check_encoding(request.headers)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise RequestTooLarge(f"The request body has {declared[:20]} bytes; at most {bytes_max} are accepted.")
    received = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                received += part
                if len(received) > bytes_max:
                    raise RequestTooLarge(f"The request body is larger than {bytes_max} bytes.")
    except TimeoutError:
        raise SlowRequest(within_s) from None
    return bytes(received)


def _busy() -> JSONResponse:
    message = (
        "This server has as many open requests as it can hold (limit `process_requests`). "
        f"Try again in about {RETRY_AFTER_S:g} s."
    )
    return error_response(Refused(message, "process_requests", RETRY_AFTER_S))
