"""A request to the memory store. It is applied completely, between two points at which faults can be injected."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

WRITES = frozenset(
    [
        "append",
        "save_snapshot_part",
        "save_snapshot_manifest",
        "cut",
        "create",
        "answer",
        "share",
        "refuse",
        "keep_response",
        "put_file",
        "delete_file",
        "create_batch",
        "replace_batch",
        "retire_batch",
        "delete_response",
        "put_mailbox",
        "put_usage",
        "put_tenant_rows",
        "put_tenant",
        "delete_tenant",
        "erase",
        "put_key",
        "delete_key",
    ]
)
"""The names of the operations that write, as a Faults hook gets them."""
READS = frozenset(
    [
        "read_log",
        "last_entry",
        "load_snapshot",
        "get",
        "find",
        "response",
        "file",
        "files",
        "batch",
        "batches",
        "open_batches",
        "read_mailbox",
        "usage",
        "tenant_rows",
        "find_key",
        "get_tenant",
        "find_tenant",
        "list_tenants",
        "keys_of",
        "audit_records",
    ]
)


class StoreFaults(Protocol):
    """Injects faults. Each method may raise StoreUnavailable, or wait on the clock."""

    async def before(self, operation: str) -> None:
        """Called before the request is applied."""
        ...

    async def after(self, operation: str) -> None:
        """Called after the request was applied, before its reply."""
        ...


class CountedRequests:
    """Counts requests and injects faults. `lock` is shared by all views of the same data."""

    def __init__(self, lock: threading.Lock, faults: StoreFaults | None) -> None:
        self.counts: Counter[str] = Counter()
        self.faults = faults
        self._lock = lock

    async def apply(self, operation: str, apply: Callable[[], T]) -> T:
        """Apply one operation atomically and return its result."""
        if self.faults is not None:
            await self.faults.before(operation)
        with self._lock:
            self.counts[operation] += 1
            reply = apply()
        if self.faults is not None:
            await self.faults.after(operation)
        return reply
