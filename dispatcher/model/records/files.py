"""A tenant's files for OpenAI's batch API, and the ports that keep their records and their bytes. Pure.

The record is in the gate's store (SQLite, DynamoDB). The bytes are in a folder or in S3, under `FileRecord.blob`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dispatcher.model.errors import TenantError

INPUT, OUTPUT = "batch", "batch_output"
"""The purposes of a file: the requests of a batch, uploaded by the tenant; and its answers or errors."""


class UnknownFile(TenantError):
    def __init__(self, message: str = "No file has this id.") -> None:
        super().__init__(message, "not_found", "id", 404, "invalid_request_error")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Times are Unix seconds."""

    id: str
    """`file-`, the time of creation, and random characters. So the ids of a tenant are in order of creation."""
    tenant: str
    filename: str
    purpose: str
    size_bytes: int
    created_at: float
    expires_at: float

    @property
    def blob(self) -> str:
        return f"{self.tenant}/{self.id}"

    def body(self) -> dict[str, Any]:
        """Return OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": int(self.created_at),
            "expires_at": int(self.expires_at),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class FileRecords(Protocol):
    """A part of dispatcher.ports.Store. No tenant can read the records of another one."""

    async def put_file(self, record: FileRecord) -> None: ...

    async def file(self, tenant: str, file_id: str) -> FileRecord | None: ...

    async def files(self, tenant: str) -> Sequence[FileRecord]:
        """Return the tenant's files, the newest first."""
        ...

    async def delete_file(self, tenant: str, file_id: str) -> bool:
        """Delete the record. Return whether there was one."""
        ...


class FileStore(Protocol):
    """Keeps the bytes of files. A name has two parts of A-Za-z0-9._-, separated by a slash, and no part is `..`.

    Each method raises StoreUnavailable if the folder or the bucket cannot be used.
    """

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> int:
        """Store the parts as one blob, in place of an earlier one. Return its bytes.

        A reader sees all of it, or none. If `parts` raises, nothing is stored.
        """
        ...

    def read(self, name: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from position `start` on, in parts. Raises UnknownFile."""
        ...

    async def delete(self, name: str) -> None:
        """Delete the blob, if there is one."""
        ...

    async def delete_older(self, age_s: float) -> None:
        """Delete what was written more than `age_s` seconds ago, unless the store does this by itself."""
        ...
