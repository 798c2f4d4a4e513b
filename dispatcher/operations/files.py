"""Uploads, lists, reads and deletes the files of the batch API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from dispatcher.model.batches import INPUT, FileRecord, FileStore, UnknownFile
from dispatcher.model.errors import InvalidRequest, Refused, RequestTooLarge
from dispatcher.operations.context import Context
from dispatcher.operations.store_patience import in_time

_FILES_MAX = 2_000
"""The most files of one tenant."""


def file_store(context: Context) -> FileStore:
    """Return the store of the files' bytes. Raises InvalidRequest if the service has none."""
    if context.files is None:
        message = "This service has no batch API: its operator has not set HEADGATE_FILES."
        raise InvalidRequest(message, None, "batches_unavailable")
    return context.files


def new_id(context: Context, prefix: str) -> str:
    """Return an id that is above all ids with this prefix that were made before this millisecond."""
    return f"{prefix}{int(context.clock.now() * 1000):011x}{context.ids.new()}"


def new_record(context: Context, tenant: str, filename: str, purpose: str) -> FileRecord:
    """Return the record of a file without content."""
    now = context.clock.now()
    expires_at = now + context.settings.files_kept_s
    return FileRecord(new_id(context, "file-"), tenant, filename, purpose, 0, now, expires_at)


async def upload(context: Context, tenant: str, filename: str, parts: AsyncIterator[bytes]) -> FileRecord:
    """Store the input file of a batch. Raises RequestTooLarge, Refused (too many files), and what `parts` raises."""
    files = file_store(context)
    held = await in_time(context.store.files(tenant))
    if len(held) >= _FILES_MAX:
        message = f"You have {len(held)} files, at most {_FILES_MAX} are kept. Delete some."
        raise Refused(message, "files", None)
    left = context.settings.files_bytes_max - sum(each.size_bytes for each in held)
    record = new_record(context, tenant, filename, INPUT)
    size = await files.write(record.blob, _limit_parts(parts, context.settings.file_bytes_max, left))
    record = replace(record, size_bytes=size)
    await in_time(context.store.put_file(record))
    return record


async def file_of(context: Context, tenant: str, file_id: str) -> FileRecord:
    """Return the tenant's file. Raises UnknownFile, InvalidRequest if the service keeps no files."""
    file_store(context)
    found = await in_time(context.store.file(tenant, file_id))
    if found is None:
        raise UnknownFile()
    return found


async def delete(context: Context, tenant: str, file_id: str) -> None:
    """Delete the file. Raises UnknownFile."""
    record = await file_of(context, tenant, file_id)
    await in_time(context.store.delete_file(tenant, file_id))
    await file_store(context).delete(record.blob)


async def _limit_parts(parts: AsyncIterator[bytes], file_max: int, left: int) -> AsyncIterator[bytes]:
    size = 0
    async for each in parts:
        size += len(each)
        if size > file_max:
            raise RequestTooLarge(f"A file has at most {file_max} bytes. Make several batches.", "file")
        if size > left:
            raise RequestTooLarge(f"Your files may have {max(0, left)} bytes more. Delete some.", "file")
        yield each
