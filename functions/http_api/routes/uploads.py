"""Reads an uploaded file: a multipart form whose size and time are bounded. A large file is spooled to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from dispatcher.model.errors import InvalidRequest, RequestTooLarge, SlowRequest
from functions.http_api.heads import check_encoding

UPLOAD_S = 600.0
"""The longest time for a file to arrive."""
FORM_BYTES = 64 * 1024
"""What a form may have beside its file."""
FIELDS_MAX = 8
READ_BYTES = 256 * 1024
FILENAME_CHARS_MAX = 255


class Upload(NamedTuple):
    filename: str
    purpose: str
    file: UploadFile

    async def parts(self) -> AsyncIterator[bytes]:
        while data := await self.file.read(READ_BYTES):
            yield data


@asynccontextmanager
async def uploaded(request: Request, bytes_max: int) -> AsyncGenerator[Upload, None]:
    """Yield the form's file. Raises InvalidRequest, EncodedRequest, RequestTooLarge, SlowRequest, ClientDisconnect."""
    check_encoding(request.headers)
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("Send a multipart form with `file` and `purpose`.", "file")
    parser = MultiPartParser(
        request.headers, _read_body(request, bytes_max), max_files=1, max_fields=FIELDS_MAX, max_part_size=FORM_BYTES
    )
    try:
        async with asyncio.timeout(UPLOAD_S):
            form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}", "file", "invalid_form") from None
    except TimeoutError:
        raise SlowRequest(UPLOAD_S) from None
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
    return Upload((file.filename or "")[-FILENAME_CHARS_MAX:], purpose, file)


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
