"""OpenAI's batch API: a tenant's batches and files, and the ports that keep them. Pure. Times are Unix seconds.

    validating ──▶ in_progress ──▶ finalizing ──▶ completed, expired
        │               └──▶ cancelling ──▶ cancelled
        └──▶ failed

One process at a time runs a batch (`runner`), until `claimed_until`. Each change of the record has a new version and is
refused if another process changed it first.

The records of batches and files are in the gate's store (SQLite, DynamoDB). The bytes of a file are in a folder or in
S3, under `FileRecord.blob`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from dispatcher.model.errors import TenantError

VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING = "validating", "in_progress", "finalizing", "cancelling"
COMPLETED, EXPIRED, CANCELLED, FAILED = "completed", "expired", "cancelled", "failed"
_OPEN = frozenset({VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING})
_TIMES = (IN_PROGRESS, FINALIZING, COMPLETED, FAILED, EXPIRED, CANCELLING, CANCELLED)


class UnknownBatch(TenantError):
    def __init__(self) -> None:
        super().__init__("No batch has this id.", "not_found", "id", 404, "invalid_request_error")


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    """`batch_`, the time of creation, and random characters. So the ids of a tenant are in order of creation."""
    tenant: str
    pool: str
    endpoint: str
    """The path that all lines have, such as /v1/chat/completions."""
    input_file_id: str
    window: str
    """`completion_window`, such as 24h."""
    created_at: float
    expires_at: float
    """The end of the window. Lines without an answer are given up then."""
    forgotten_at: float
    """The record is deleted at this time."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    status: str = VALIDATING
    version: int = 1
    runner: str = ""
    claimed_until: float = 0.0
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    next_line: int = 0
    """The results of the lines below this one are stored in `parts`."""
    next_byte: int = 0
    """Where that line begins in the input file."""
    parts: tuple[str, ...] = ()
    """The names of the stored results so far, in order of the lines. Empty once the output files are complete."""
    output_file_id: str = ""
    error_file_id: str = ""
    errors: tuple[Mapping[str, Any], ...] = ()
    """Why the batch failed: OpenAI's objects with code, message, param and line."""
    times: Mapping[str, float] = field(default_factory=dict)
    """When the batch entered each later state."""

    @property
    def is_open(self) -> bool:
        return self.status in _OPEN

    def body(self) -> dict[str, Any]:
        """Return OpenAI's batch object."""
        times = {f"{name}_at": int(self.times[name]) if name in self.times else None for name in _TIMES}
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.window,
            "status": self.status,
            "output_file_id": self.output_file_id or None,
            "error_file_id": self.error_file_id or None,
            "created_at": int(self.created_at),
            "expires_at": int(self.expires_at),
            **times,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {**tokens, "total_tokens": self.input_tokens + self.output_tokens},
            "metadata": dict(self.metadata) or None,
        }


def batch_record(batch: Batch) -> dict[str, Any]:
    """Return the batch as a dictionary for JSON."""
    return asdict(batch)


def to_batch(record: Mapping[str, Any]) -> Batch:
    return Batch(**{**record, "parts": tuple(record["parts"]), "errors": tuple(record["errors"])})


class BatchStore(Protocol):
    """A part of dispatcher.ports.Store. No tenant can read the batches of another one."""

    async def create_batch(self, batch: Batch) -> None: ...

    async def batch(self, tenant: str, batch_id: str) -> Batch | None: ...

    async def batches(self, tenant: str) -> Sequence[Batch]:
        """Return the tenant's batches, the newest first."""
        ...

    async def replace_batch(self, batch: Batch, expected_version: int) -> bool:
        """Store the batch if the stored one has `expected_version`. Return whether it is stored."""
        ...

    async def open_batches(self, pool: str) -> Sequence[tuple[str, str]]:
        """Return (tenant, id) of each batch of the pool that is not retired, the oldest first."""
        ...

    async def retire_batch(self, batch: Batch) -> None:
        """Take an ended batch out of the open ones. Until then `open_batches` returns it."""
        ...


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
