"""OpenAI's routes of the batch API: files, batches, and the pages of their lists.

A file is uploaded as a multipart form whose size and time are bounded. A large file is spooled to the disk. A batch is
run by another process (dispatcher/operations/batches).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dispatcher.model.batches import INPUT, OUTPUT, FileRecord
from dispatcher.model.errors import InvalidRequest, RequestTooLarge, SlowRequest
from dispatcher.model.tenants import Tenant
from dispatcher.operations.batches.create import batch_of, cancel, create
from dispatcher.operations.context import Context
from dispatcher.operations.files import delete, file_of, file_store, upload
from dispatcher.operations.store_patience import in_time
from dispatcher.strict_json import parse_object
from functions.http_api.callers import context_of, owner_of
from functions.http_api.connections import check_encoding, read_body

_FILES_PATH = "/v1/files"
_FILES_MAX = 10_000
FILE_PARAMETERS = {
    "purpose": f"Only files with this purpose: {INPUT} or {OUTPUT}.",
    "after": "The id of the last file of the page before.",
    "limit": f"The most files of a page, at most {_FILES_MAX}. Default: {_FILES_MAX}.",
    "order": "desc (the newest first, the default) or asc.",
}


async def _create_file(request: Request) -> Response:
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


async def _list_files(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    file_store(context)
    query = request.query_params
    _check_query(query, FILE_PARAMETERS)
    purpose = query.get("purpose")
    found = [each for each in await in_time(context.store.files(tenant.identity)) if purpose in (None, each.purpose)]
    return JSONResponse(page(found, query, usual=_FILES_MAX, most=_FILES_MAX))


async def _get_file(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse((await file_of(context, tenant.identity, request.path_params["id"])).body())


async def _get_content(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    record = await file_of(context, tenant.identity, request.path_params["id"])
    content = file_store(context).read(record.blob)
    headers = {"content-length": str(record.size_bytes)}
    return StreamingResponse(content, media_type="application/octet-stream", headers=headers)


async def _remove_file(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    name = request.path_params["id"]
    await delete(context, tenant.identity, name)
    return JSONResponse({"id": name, "object": "file", "deleted": True})


def _check_query(query: Mapping[str, str], known: Mapping[str, str]) -> None:
    for name in query:
        if name not in known:
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")


FILE_ROUTES = [
    Route(_FILES_PATH, _create_file, methods=["POST"]),
    Route(_FILES_PATH, _list_files, methods=["GET"]),
    Route(f"{_FILES_PATH}/{{id}}", _get_file, methods=["GET"]),
    Route(f"{_FILES_PATH}/{{id}}", _remove_file, methods=["DELETE"]),
    Route(f"{_FILES_PATH}/{{id}}/content", _get_content, methods=["GET"]),
]


_BATCHES_PATH = "/v1/batches"
_BATCHES_USUAL, _BATCHES_MAX = 20, 100
BATCH_PARAMETERS = {
    "after": "The id of the last batch of the page before.",
    "limit": f"The most batches of a page, at most {_BATCHES_MAX}. Default: {_BATCHES_USUAL}.",
}


async def _create_batch(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    body = parse_object(await read_body(request, context.limit_settings.body_s))
    return JSONResponse((await create(context, tenant, body)).body())


async def _list_batches(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    file_store(context)
    _check_query(request.query_params, BATCH_PARAMETERS)
    batches = await in_time(context.store.batches(tenant.identity))
    return JSONResponse(page(batches, request.query_params, usual=_BATCHES_USUAL, most=_BATCHES_MAX))


async def _get_batch(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse((await batch_of(context, tenant.identity, request.path_params["id"])).body())


async def _cancel_batch(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    return JSONResponse((await cancel(context, tenant.identity, request.path_params["id"])).body())


BATCH_ROUTES = [
    Route(_BATCHES_PATH, _create_batch, methods=["POST"]),
    Route(_BATCHES_PATH, _list_batches, methods=["GET"]),
    Route(f"{_BATCHES_PATH}/{{id}}", _get_batch, methods=["GET"]),
    Route(f"{_BATCHES_PATH}/{{id}}/cancel", _cancel_batch, methods=["POST"]),
]


_UPLOAD_S = 600.0
"""The longest time for a file to arrive."""
FORM_BYTES = 64 * 1024
"""What a form may have beside its file."""
_FIELDS_MAX = 8
_READ_BYTES = 256 * 1024
_FILENAME_CHARS_MAX = 255


class Upload(NamedTuple):
    filename: str
    purpose: str
    file: UploadFile

    async def parts(self) -> AsyncIterator[bytes]:
        while data := await self.file.read(_READ_BYTES):
            yield data


@asynccontextmanager
async def uploaded(request: Request, bytes_max: int) -> AsyncGenerator[Upload, None]:
    """Yield the form's file. Raises InvalidRequest, EncodedRequest, RequestTooLarge, SlowRequest, ClientDisconnect."""
    check_encoding(request.headers)
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("Send a multipart form with `file` and `purpose`.", "file")
    parser = MultiPartParser(
        request.headers, _read_body(request, bytes_max), max_files=1, max_fields=_FIELDS_MAX, max_part_size=FORM_BYTES
    )
    try:
        async with asyncio.timeout(_UPLOAD_S):
            form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}", "file", "invalid_form") from None
    except TimeoutError:
        raise SlowRequest(_UPLOAD_S) from None
    try:
        yield _upload_of(form.multi_items())
    finally:
        await form.close()


def _upload_of(items: list[tuple[str, UploadFile | str]]) -> Upload:
    fields = dict(items)
    if len(fields) != len(items):
        raise InvalidRequest("The form has a field twice.", "file", "invalid_form")
    for name in fields:
        if name not in ("file", "purpose"):
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")
    file, purpose = fields.get("file"), fields.get("purpose")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("`file` is missing: send it as a file of the form.", "file", "missing_required_parameter")
    if not isinstance(purpose, str):
        raise InvalidRequest("`purpose` is missing: send batch.", "purpose", "missing_required_parameter")
    return Upload((file.filename or "")[-_FILENAME_CHARS_MAX:], purpose, file)


async def _read_body(request: Request, bytes_max: int) -> AsyncGenerator[bytes, None]:
    most = bytes_max + FORM_BYTES
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(bytes_max)
    received = 0
    async for part in request.stream():
        received += len(part)
        if received > most:
            raise _too_large(bytes_max)
        yield part


def _too_large(bytes_max: int) -> RequestTooLarge:
    return RequestTooLarge(f"A file has at most {bytes_max} bytes. Make several batches.", "file")


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def body(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Listed)


def page(newest_first: Sequence[T], query: Mapping[str, str], *, usual: int, most: int) -> dict[str, Any]:
    """Return the page that the query asks for: `limit` (`usual`, at most `most`) objects after the one named `after`,
    the newest first unless `order` is "asc". Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` is asc or desc.", "order")
    listed = newest_first if order == "desc" else newest_first[::-1]
    after, limit = query.get("after"), _limit(query.get("limit"), usual, most)
    if after is not None:
        # The object may have expired since the page before. Ids are in order of creation, so the next ones are known.
        listed = [each for each in listed if (each.id < after if order == "desc" else each.id > after)]
    chosen = listed[:limit]
    return {
        "object": "list",
        "data": [each.body() for each in chosen],
        "first_id": chosen[0].id if chosen else None,
        "last_id": chosen[-1].id if chosen else None,
        "has_more": len(listed) > limit,
    }


def _limit(text: str | None, usual: int, most: int) -> int:
    if text is None:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= most):
        raise InvalidRequest(f"`limit` is a number from 1 to {most}.", "limit")
    return int(text)
