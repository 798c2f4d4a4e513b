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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from starlette.datastructures import Headers
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
CONTEXT = "headgate.context"
"""The key in the scope of the process's Context."""
_HELD = "headgate.held"
"""The key in the scope of what the request holds of the limits, until its last byte is sent."""


class Losses:
    """What is called when one connection is lost. uvicorn's protocol of the connection tells it (protocol.py).

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


def hold_open_request(request: Request, context: Context, tenant: str) -> None:
    """Hold one of the tenant's open requests until the answer is sent. Raises Refused."""
    context.limits.requests.take(tenant)
    request.scope[_HELD].callback(context.limits.requests.give_back, tenant)


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
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                received += message.get("body", b"")
                if len(received) > bytes_max:
                    raise RequestTooLarge(f"The request body is larger than {bytes_max} bytes.")
                if not message.get("more_body", False):
                    return bytes(received)
    except TimeoutError:
        raise SlowRequest(within_s) from None


def _busy() -> JSONResponse:
    message = (
        "This server has as many open requests as it can hold (limit `process_requests`). "
        f"Try again in about {RETRY_AFTER_S:g} s."
    )
    return error_response(Refused(message, "process_requests", RETRY_AFTER_S))


_SINGLE = ("authorization", "idempotency-key", "content-length", "content-type", "host")
"""Headers that a request has once. Of two, a proxy may read the first and this process the last."""


def _ambiguity(headers: Sequence[tuple[bytes, bytes]]) -> InvalidRequest | None:
    names = [name for name, _ in headers]
    if len(set(names)) < len(names):
        for name in _SINGLE:
            if names.count(name.encode()) > 1:
                message = f"The request has the header `{name}` more than once. Send it once."
                return InvalidRequest(message, name, "repeated_header")
    if b"transfer-encoding" in names and b"content-length" in names:
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


class _Answer:
    """Sends the answer of one request: names it, and in Lambda finishes all work before its last byte."""

    __slots__ = ("_finish", "_scope", "_send", "is_sending", "is_slow", "sends", "stuck", "task")

    def __init__(self, send: Send, scope: Scope, finish: Callable[[], Awaitable[None]] | None) -> None:
        self._send, self._scope, self._finish = send, scope, finish
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI runs in tasks
        self.task = task
        self.is_sending = self.is_slow = False
        self.sends = 0
        self.stuck = (0, 0)
        """The sends at the last look, and how many looks found the same one."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if all(name != _ID_NAME for name, _ in message.get("headers", ())):
                named = (_ID_NAME, request_id(self._scope).encode("latin-1"))
                message = {**message, "headers": [*message.get("headers", ()), named]}
        elif self._finish is not None and not message.get("more_body", False):
            await self._finish()
        self.sends += 1
        self.is_sending = True
        try:
            await self._send(message)
        finally:
            self.is_sending = False

    def look(self) -> None:
        """Cancel the request if LOOKS looks have found its caller in the same send: it does not read."""
        count = self.stuck[1] + 1 if self.is_sending and self.stuck[0] == self.sends else 0
        self.stuck = (self.sends, count)
        if count >= _LOOKS and not self.is_slow:
            self.is_slow = True
            self.task.cancel()


_ID_NAME = ID_HEADER.encode("latin-1")
_LOOKS = 4
"""A caller that does not read is looked at so many times within LimitSettings.send_s."""


class Edge:
    """ASGI middleware, the only one: each layer of its own would cost every event of every stream a call.

    Every answer has an id. A path that ends with a slash is served like the path without it: a redirect would name http
    and this process's host, which a caller behind a load balancer may not reach. (The links of the operator's page are
    relative, so its paths stay as they are.) A preflight request of a page from a configured origin is answered before
    any handler looks for a key.

    Then a head that two servers can read in two ways is refused, and its connection is closed. A proxy that takes
    `Content-Length` where this process takes `Transfer-Encoding` would see another request in the rest of the body (RFC
    9112, section 6.1). Two keys name two tenants, and two idempotency keys two calls.

    Then a request holds its limits until its answer is sent, or until its caller has not read for
    LimitSettings.send_s. One timer watches all callers.

    In Lambda (`GateSettings.front`) the last message of a body waits until no task runs beside the request and no
    command is on its way. It does so too before an answer that breaks off. Lambda sends one request at a time to a
    process, so that no other request's work is waited for.

    `direct`: what answers a POST to a path, without Starlette's router.
    """

    def __init__(self, app: ASGIApp, direct: Mapping[str, ASGIApp]) -> None:
        self._app, self._direct = app, direct
        self._cors: CORSMiddleware | None = None
        self._open = 0
        self._answers: set[_Answer] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = scope["path"]
        if path[-1:] == "/" and not path.startswith(OPERATOR_PATH):
            scope["path"] = path.rstrip("/") or "/"
        state = scope["app"].state
        context: Context = state.context
        scope[CONTEXT] = context
        finish = None if context.settings.front == "server" else partial(_finish, context, state.ended_calls)
        answer = _Answer(send, scope, finish)
        self._answers.add(answer)
        if self._timer is None:
            self._look_later(context.limit_settings.send_s / _LOOKS)
        try:
            if context.cors_origins:
                await self._with_cors(context.cors_origins)(scope, receive, answer)
            else:
                await self._admit(scope, receive, answer)
        except asyncio.CancelledError:
            if not answer.is_slow or answer.task.uncancel():
                raise
            if LOSSES in scope:
                scope[LOSSES].drop()
            logger.warning("disconnected a caller that does not read", extra={"path": path[:100]})
        finally:
            self._answers.discard(answer)
            if finish is not None:
                await finish()

    def _look_later(self, pause_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._look, pause_s)

    def _look(self, pause_s: float) -> None:
        """Look for callers that do not read, as long as there is an answer."""
        self._timer = None
        for answer in list(self._answers):
            answer.look()
        if self._answers:
            self._look_later(pause_s)

    def _with_cors(self, origins: tuple[str, ...]) -> CORSMiddleware:
        if self._cors is None:
            self._cors = CORSMiddleware(
                self._admit,
                allow_origins=origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=_EXPOSED,
                max_age=_PREFLIGHT_KEPT_S,
            )
        return self._cors

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = _ambiguity(scope["headers"])
        if error is not None:
            response = error_response(error)
            response.headers["connection"] = "close"
            return await response(scope, receive, send)
        if scope["path"] in _UNBOUNDED:
            return await self._app(scope, receive, send)
        context: Context = scope[CONTEXT]
        if self._open >= context.limit_settings.process_requests_max:
            return await _busy()(scope, receive, send)
        self._open += 1
        try:
            with ExitStack() as held:
                scope[_HELD] = held
                app = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
                await (app or self._app)(scope, receive, send)
        finally:
            self._open -= 1
        return None


async def _finish(context: Context, ended_calls: EndedCalls) -> None:
    """Finish the work of the request, write its line and its metrics, and export its spans."""
    await context.finish()
    ended_calls.flush()
    await context.tracing.flush()
