"""The heads of requests and answers: ambiguous heads are refused, and every answer has an id."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.model.errors import EncodedRequest, InvalidRequest
from functions.http_api.operator.page import PATH as OPERATOR_PATH
from functions.http_api.refusals import ID_HEADER, error_response, request_id

SINGLE = ("authorization", "idempotency-key", "content-length", "content-type", "host")
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
        for name in SINGLE:
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
