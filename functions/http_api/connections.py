"""What stands between a connection and a route: bounds, heads, CORS, and the end of an answer in Lambda.

How many requests are open and how slowly a caller may send and read is bounded. uvicorn hands a request over when its
head has arrived. What follows is bounded here: a body arrives within LimitSettings.body_s, and a caller that does not
read for LimitSettings.send_s is disconnected.

Ambiguous heads are refused, and every answer has an id. Pages of other origins may call the gate from a browser, if the
configuration names these origins. A front in Lambda finishes all work before the last byte of each answer, because
Lambda freezes it then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.model.errors import EncodedRequest, InvalidRequest, Refused, RequestTooLarge, SlowRequest
from dispatcher.operations.context import Context
from dispatcher.operations.limits import RETRY_AFTER_S
from dispatcher.strict_json import BODY_BYTES_MAX
from functions.ended_calls import EndedCalls
from functions.http_api.operator.page import PATH as OPERATOR_PATH
from functions.http_api.refusals import ID_HEADER, error_response, request_id
from functions.observability import logger

_UNBOUNDED = ("/health", "/ready")
"""The paths that are answered however many requests are open."""
_HELD = "headgate.held"
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


class Losses:
    """What is called when one connection is lost. uvicorn's protocol of the connection tells it (server.py).

    `drop` loses it, without waiting until the caller has read what was sent.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self.calls: dict[Callable[[], None], None] = {}
        self.is_lost = False
        self.drop = drop

    def happen(self) -> None:
        self.is_lost = True
        for call in list(self.calls):
            call()


LOSSES = "headgate.losses"
"""The key in the scope of the Losses of the request's connection. Other servers than ours have none."""


class WhileConnected:
    """A block that ends with ClientDisconnect as soon as the caller disconnects. Its task is cancelled for that, as by
    `asyncio.timeout`."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._losses: Losses | None = request.scope.get(LOSSES)
        self._watching: asyncio.Task[None] | None = None
        self._is_gone = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI runs in tasks
        self._task, self._cancelling = task, task.cancelling()
        if self._losses is None:
            self._watching = asyncio.ensure_future(self._watch())
        elif self._losses.is_lost:
            raise ClientDisconnect
        else:
            self._losses.calls[self._on_gone] = None

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if self._losses is not None:
            self._losses.calls.pop(self._on_gone, None)
        if self._watching is not None:
            self._watching.cancel()
        if self._is_gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientDisconnect from None

    def _on_gone(self) -> None:
        self._is_gone = True
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._on_gone()


class BoundedConnections:
    """ASGI middleware. A request holds its limits until its answer is sent: only CORS and heads are outside of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNBOUNDED:
            return await self._app(scope, receive, send)
        context: Context = scope["app"].state.context
        if self._open >= context.limit_settings.process_requests_max:
            return await _busy()(scope, receive, send)
        self._open += 1
        try:
            with ExitStack() as held:
                scope[_HELD] = held
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
                if LOSSES in scope:
                    scope[LOSSES].drop()
                logger.warning("disconnected a caller that does not read", extra={"path": scope["path"][:100]})


def hold_open_request(request: Request, context: Context, tenant: str) -> None:
    """Hold one of the tenant's open requests until the answer is sent. Raises Refused."""
    request.scope[_HELD].enter_context(context.limits.open_request(tenant))


def hold_key(request: Request, context: Context, tenant: str, key: str) -> None:
    """Hold one of the requests under an idempotency key until the answer is sent. Raises Refused."""
    request.scope[_HELD].enter_context(context.limits.key_in_flight(tenant, key))


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


_SINGLE = ("authorization", "idempotency-key", "content-length", "content-type", "host")
"""Headers that a request has once. Of two, a proxy may read the first and this process the last."""


class NamedRequests:
    """ASGI middleware, the outermost one. It adds `x-request-id` to every answer that has none, and serves a path that
    ends with a slash like the path without it.

    A redirect would name http and this process's host, which a caller behind a load balancer may not reach. The links
    of the operator's page are relative, so its paths stay as they are (operator/routes.py).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                if ID_HEADER not in headers:
                    headers[ID_HEADER] = request_id(scope)
                    message = {**message, "headers": headers.raw}
            await send(message)

        path = scope["path"]
        if path.endswith("/") and not path.startswith(OPERATOR_PATH):
            scope["path"] = path.rstrip("/") or "/"
        return await self._app(scope, receive, send_named)


class UnambiguousHeads:
    """ASGI middleware. It refuses a head that two servers can read in two ways, and closes the connection.

    A proxy that takes `Content-Length` where this process takes `Transfer-Encoding` would see another request in the
    rest of the body (RFC 9112, section 6.1). Two keys name two tenants, and two idempotency keys two calls.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = _ambiguity(Headers(scope=scope)) if scope["type"] == "http" else None
        if error is None:
            return await self._app(scope, receive, send)
        response = error_response(error)
        response.headers["connection"] = "close"
        return await response(scope, receive, send)


def _ambiguity(headers: Headers) -> InvalidRequest | None:
    names = [name for name, _ in headers.raw]
    if len(set(names)) < len(names):
        for name in _SINGLE:
            if names.count(name.encode()) > 1:
                message = f"The request has the header `{name}` more than once. Send it once."
                return InvalidRequest(message, name, "repeated_header")
    if "transfer-encoding" in headers and "content-length" in headers:
        message = "The request has both `Content-Length` and `Transfer-Encoding`. Send one of them."
        return InvalidRequest(message, "content-length", "ambiguous_length")
    return None


def check_encoding(headers: Headers) -> None:
    """Raise EncodedRequest if the body has another encoding than `identity`, which changes nothing."""
    encodings = ",".join(headers.getlist("content-encoding"))
    if any(each.strip().lower() not in ("", "identity") for each in encodings.split(",")):
        raise EncodedRequest(encodings)


_EXPOSED = (
    "retry-after",
    "x-request-id",
    "x-headgate-queue-position",
    "x-headgate-estimated-wait-ms",
    "x-headgate-estimated-wait-p90-ms",
    "x-headgate-dropped-fields",
)
"""The headers of an answer that a page may read."""
_PREFLIGHT_KEPT_S = 600


class ConfiguredCors:
    """ASGI middleware. The origins are known when the app has started (Context.cors_origins); none by default.

    A preflight request has no key, so this middleware answers it before any handler looks for one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cors: CORSMiddleware | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = scope["app"].state.context.cors_origins if scope["type"] == "http" else ()
        if not origins:
            return await self._app(scope, receive, send)
        if self._cors is None:
            self._cors = CORSMiddleware(
                self._app,
                allow_origins=origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=_EXPOSED,
                max_age=_PREFLIGHT_KEPT_S,
            )
        return await self._cors(scope, receive, send)


class FinishedBeforeLastByte:
    """ASGI middleware. It does nothing in a front that is not in Lambda (`GateSettings.front`).

    The last message of the body waits until no task runs beside the request and no command is on its way. It does so
    too before an answer that breaks off. Lambda sends one request at a time to a process, so that no other request's
    work is waited for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["app"].state.context.settings.front == "server":
            return await self._app(scope, receive, send)
        state = scope["app"].state
        context: Context = state.context
        ended_calls: EndedCalls = state.ended_calls

        async def send_finished(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await _finish(context, ended_calls)
            await send(message)

        try:
            await self._app(scope, receive, send_finished)
        finally:
            await _finish(context, ended_calls)
        return None


async def _finish(context: Context, ended_calls: EndedCalls) -> None:
    """Finish the work of the request, write its line and its metrics, and export its spans."""
    await context.finish()
    ended_calls.flush()
    await context.tracing.flush()
