"""OpenAI's routes of batches. A batch is run by another process (dispatcher/operations/batches)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dispatcher.operations.batches.create import batch_of, cancel, create
from dispatcher.operations.files import file_store
from dispatcher.operations.store_patience import in_time
from dispatcher.strict_json import parse_object
from functions.http_api.callers import context_of, owner_of
from functions.http_api.connections import read_body
from functions.http_api.routes.files import check_query
from functions.http_api.routes.pages import page

PATH = "/v1/batches"
LIMIT_USUAL, LIMIT_MAX = 20, 100
PARAMETERS = {
    "after": "The id of the last batch of the page before.",
    "limit": f"The most batches of a page, at most {LIMIT_MAX}. Default: {LIMIT_USUAL}.",
}


async def create_batch(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    body = parse_object(await read_body(request, context.limit_settings.body_s))
    return JSONResponse((await create(context, tenant, body)).body())


async def list_batches(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    file_store(context)
    check_query(request.query_params, PARAMETERS)
    batches = await in_time(context.store.batches(tenant.identity))
    return JSONResponse(page(batches, request.query_params, usual=LIMIT_USUAL, most=LIMIT_MAX))


async def get_batch(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse((await batch_of(context, tenant.identity, request.path_params["id"])).body())


async def cancel_batch(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse((await cancel(context, tenant.identity, request.path_params["id"])).body())


ROUTES = [
    Route(PATH, create_batch, methods=["POST"]),
    Route(PATH, list_batches, methods=["GET"]),
    Route(f"{PATH}/{{id}}", get_batch, methods=["GET"]),
    Route(f"{PATH}/{{id}}/cancel", cancel_batch, methods=["POST"]),
]
