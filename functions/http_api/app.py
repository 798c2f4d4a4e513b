"""OpenAI's routes. A handler parses the request, calls an operation and answers; operations know nothing of HTTP.

`app` reads its configuration when it starts (the lifespan), so an import of this module needs no AWS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dispatcher.bootstrap import make_context
from dispatcher.model.answers import AnswerHead
from dispatcher.model.errors import AnsweredError, RequestTooLarge, ServiceError, UnknownModel
from dispatcher.model.old_outcomes import Known
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.submit import Submission, submit
from dispatcher.strict_json import BODY_BYTES_MAX, parse_object
from dispatcher.wire import parse_request
from functions.envelope import id_of
from functions.http_api.replies import replay, respond, respond_streaming
from functions.observability import logger


async def list_models(request: Request) -> Response:
    tenant = await _context(request).directory.tenant_of(_api_key(request))
    return JSONResponse({"object": "list", "data": await _models(request, tenant.pool, tenant.models)})


async def get_model(request: Request) -> Response:
    tenant = await _context(request).directory.tenant_of(_api_key(request))
    name = request.path_params["name"]
    for model in await _models(request, tenant.pool, tenant.models):
        if model["id"] == name:
            return JSONResponse(model)
    raise UnknownModel(name)


async def chat_completions(request: Request) -> Response:
    return await _complete(request, chat=True)


async def completions(request: Request) -> Response:
    return await _complete(request, chat=False)


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _complete(request: Request, *, chat: bool) -> Response:
    context = _context(request)
    tenant = await context.directory.tenant_of(_api_key(request))
    parsed = parse_request(parse_object(await _body(request)), chat=chat)
    given_id = _idempotency_key(request)
    submission = Submission(
        tenant=tenant,
        request=parsed,
        id=given_id or context.ids.new(),
        deadline_s=context.settings.deadline_s,
        keep_body=False,
        keep_answer=given_id is not None,
    )
    accepted = await submit(context, submission)
    head = AnswerHead(submission.id, int(accepted.invocation.arrived_at), parsed.model, chat)
    if isinstance(accepted, Known):
        return await replay(context, accepted, parsed, head)
    reply = respond_streaming if parsed.stream else respond
    return await reply(context, submission, accepted, head, request)


async def _models(request: Request, pool: str, allowed: tuple[str, ...] | None) -> list[dict[str, object]]:
    context = _context(request)
    now = context.clock.now()
    alive = {worker.model for worker in await context.store.workers(pool) if now < worker.alive_until}
    names = sorted(alive if allowed is None else alive & set(allowed))
    return [{"id": name, "object": "model", "created": 0, "owned_by": "headgate"} for name in names]


async def _body(request: Request) -> bytes:
    """Read the body, up to its bound. Raises RequestTooLarge."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise RequestTooLarge(f"The request body has {declared[:20]} bytes; at most {BODY_BYTES_MAX} are accepted.")
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > BODY_BYTES_MAX:
            raise RequestTooLarge(f"The request body is larger than {BODY_BYTES_MAX} bytes.")
    return bytes(received)


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def _api_key(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _idempotency_key(request: Request) -> str | None:
    return id_of(request.headers.get("idempotency-key"), "Idempotency-Key")


async def _answered(_: Request, error: Exception) -> Response:
    assert isinstance(error, AnsweredError)  # noqa: S101 - registered for nothing else
    if isinstance(error, ServiceError):
        logger.warning("request failed", extra={"code": error.code})
    after = {} if error.retry_after_s is None else {"retry-after": str(max(1, round(error.retry_after_s)))}
    return JSONResponse(error.body(), error.status, headers=after)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    answer = AnsweredError(f"{error.detail}.", code, None, error.status_code, "invalid_request_error")
    return JSONResponse(answer.body(), error.status_code, headers=error.headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # never sent: the caller has disconnected


async def _unexpected(_: Request, error: Exception) -> Response:
    logger.error("unexpected error", extra={"kind": type(error).__name__})
    return JSONResponse(ServiceError("The server had an error.", "internal_error").body(), 500)


def make_app(make: Callable[[], Context] = make_context) -> Starlette:
    """Return the app. It calls `make` for its context when it starts."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.context = make()
        yield
        await app.state.context.finish()

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        AnsweredError: _answered,
        HTTPException: _http_error,
        ClientDisconnect: _gone,
        Exception: _unexpected,
    }
    routes = [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


app = make_app()
