"""OpenAI's routes. A handler parses the request, calls an operation and answers; operations know nothing of HTTP.

The answer to a URL that does not exist says what is wrong with it. The likely reason is a wrong base URL.

`app` reads its configuration when it starts (the lifespan), so an import of this module needs no AWS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.fields.parse import parse
from dispatcher.model.errors import AnsweredError, ServiceError
from dispatcher.model.requests import Endpoint
from dispatcher.monitor.console import OperatorAccess, make_operator
from dispatcher.operations.context import Context
from dispatcher.processes.bootstrap import make_context
from dispatcher.strict_json import parse_object
from functions.ended_calls import EndedCalls
from functions.http_api.callers import context_of, owner_of, tenant_of
from functions.http_api.connections import (
    Edge,
)
from functions.http_api.openapi import ROUTES as DOCUMENTATION
from functions.http_api.operator.routes import ROUTES as OPERATOR
from functions.http_api.refusals import ID_HEADER, error_response, request_id
from functions.http_api.routes.batches import BATCH_ROUTES, FILE_ROUTES
from functions.http_api.routes.complete import complete, read_request
from functions.http_api.routes.fleet import get_model, health, list_models, ready
from functions.http_api.routes.replies import ChatForm
from functions.http_api.routes.responses import ROUTES as RESPONSES
from functions.http_api.routes.usage import usage
from functions.observability import logger

_PATHS = ("/chat/completions", "/completions", "/embeddings", "/models", "/responses", "/files", "/batches", "/usage")


async def _chat_completions(request: Request) -> Response:
    return await _complete(request, Endpoint.CHAT)


async def completions(request: Request) -> Response:
    return await _complete(request, Endpoint.COMPLETION)


async def embeddings(request: Request) -> Response:
    return await _complete(request, Endpoint.EMBEDDINGS)


async def _complete(request: Request, endpoint: Endpoint) -> Response:
    tenant = await tenant_of(request)
    key, body = await read_request(request, tenant)
    drops = context_of(request).settings.unknown_fields == "drop"
    parsed = parse(parse_object(body), endpoint, drop_unknown=drops)
    return await complete(request, tenant, parsed, key, lambda head: ChatForm(head, parsed.request))


async def _tenant_usage(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse(await usage(context, tenant.identity, request.query_params))


async def _on_answered_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnsweredError)  # noqa: S101 - registered for nothing else
    if isinstance(error, ServiceError):
        logger.warning("request failed", extra={"code": error.code, "request_id": request_id(request.scope)})
    return error_response(error)


def _answer_directly(handle: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Return an app for one path, which answers as its route does."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except AnsweredError as error:
            response = await _on_answered_error(request, error)
        except ClientDisconnect as error:
            response = await _on_disconnect(request, error)
        await response(scope, receive, send)

    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    advice = hint(request.url.path) if error.status_code == 404 else ""
    message = f"{error.detail}. {advice}".rstrip()
    answer = AnsweredError(message, code, None, error.status_code, "invalid_request_error")
    return JSONResponse(answer.body(), error.status_code, headers=error.headers)


def hint(path: str) -> str:
    """Return a sentence about the path of a 404."""
    if path.startswith("/v1/v1/"):
        return "The path has /v1 twice: end the base URL with /v1 once."
    if any(path == each or path.startswith(f"{each}/") for each in _PATHS):
        return f"The path is /v1{path}: end the base URL with /v1."
    if any(path.endswith(each) and path != f"/v1{each}" for each in _PATHS):
        return "End the base URL with /v1, directly after the host."
    return "GET /docs lists the routes."


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # never sent: the caller has disconnected


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer 500. Starlette calls this outside of all middleware."""
    name = request_id(request.scope)
    logger.error("unexpected error", extra={"kind": type(error).__name__, "request_id": name})
    response = error_response(ServiceError("The server had an error.", "internal_error"))
    response.headers[ID_HEADER] = name
    return response


def make_app(
    make: Callable[[], Context] = make_context, operator: Callable[[Context], OperatorAccess | None] = make_operator
) -> Starlette:
    """Return the app. When it starts, it calls `make` for its context, and `operator` for the operator's page."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.context = make()
        app.state.operator = operator(app.state.context)
        yield
        await app.state.context.finish()
        app.state.ended_calls.flush()
        await app.state.context.workers.close()
        await app.state.context.tracing.flush()

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        AnsweredError: _on_answered_error,
        HTTPException: _http_error,
        ClientDisconnect: _on_disconnect,
        Exception: _on_unexpected_error,
    }
    routes = [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/v1/chat/completions", _chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        *RESPONSES,
        *FILE_ROUTES,
        *BATCH_ROUTES,
        Route("/v1/usage", _tenant_usage, methods=["GET"]),
        *DOCUMENTATION,
        *OPERATOR,
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
    ]
    direct = {
        "/v1/chat/completions": _answer_directly(_chat_completions),
        "/v1/completions": _answer_directly(completions),
    }
    middleware = [Middleware(Edge, direct=direct)]
    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=middleware)
    made.router.redirect_slashes = False
    made.state.operator, made.state.ended_calls = None, EndedCalls()
    return made


app = make_app()
