"""OpenAI's routes of files: uploads for the batch API, and its outputs."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dispatcher.model.batches import INPUT, OUTPUT, FileRecord
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.files import delete, file_of, file_store, upload
from dispatcher.operations.store_patience import in_time
from functions.http_api.callers import context_of, owner_of
from functions.http_api.routes.pages import page
from functions.http_api.routes.uploads import uploaded

PATH = "/v1/files"
LIMIT_MAX = 10_000
PARAMETERS = {
    "purpose": f"Only files with this purpose: {INPUT} or {OUTPUT}.",
    "after": "The id of the last file of the page before.",
    "limit": f"The most files of a page, at most {LIMIT_MAX}. Default: {LIMIT_MAX}.",
    "order": "desc (the newest first, the default) or asc.",
}


async def create_file(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    file_store(context)
    with context.limits.upload(tenant.identity):
        record = await _store_upload(request, context, tenant)
    return JSONResponse(record.body())


async def _store_upload(request: Request, context: Context, tenant: Tenant) -> FileRecord:
    async with uploaded(request, context.settings.file_bytes_max) as form:
        if form.purpose != INPUT:
            raise InvalidRequest(f"`purpose` must be {INPUT}: headgate keeps files for batches only.", "purpose")
        return await upload(context, tenant.identity, form.filename, form.parts())


async def list_files(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    file_store(context)
    query = request.query_params
    check_query(query, PARAMETERS)
    purpose = query.get("purpose")
    found = [each for each in await in_time(context.store.files(tenant.identity)) if purpose in (None, each.purpose)]
    return JSONResponse(page(found, query, usual=LIMIT_MAX, most=LIMIT_MAX))


async def get_file(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse((await file_of(context, tenant.identity, request.path_params["id"])).body())


async def get_content(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    record = await file_of(context, tenant.identity, request.path_params["id"])
    content = file_store(context).read(record.blob)
    headers = {"content-length": str(record.size_bytes)}
    return StreamingResponse(content, media_type="application/octet-stream", headers=headers)


async def remove_file(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    name = request.path_params["id"]
    await delete(context, tenant.identity, name)
    return JSONResponse({"id": name, "object": "file", "deleted": True})


def check_query(query: Mapping[str, str], known: Mapping[str, str]) -> None:
    for name in query:
        if name not in known:
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")


ROUTES = [
    Route(PATH, create_file, methods=["POST"]),
    Route(PATH, list_files, methods=["GET"]),
    Route(f"{PATH}/{{id}}", get_file, methods=["GET"]),
    Route(f"{PATH}/{{id}}", remove_file, methods=["DELETE"]),
    Route(f"{PATH}/{{id}}/content", get_content, methods=["GET"]),
]
