"""A request to the memory store. It is applied completely, between two points at which faults can be injected."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

from dispatcher.stores.table import ConditionFailed

T = TypeVar("T")

_KINDS = ("MAIL", "INV", "CALL", "RESP", "FILE", "BATCH", "OPEN", "USAGE", "STATE", "TENANT", "TENANTS", "KEY", "AUDIT")
"""The kinds of partitions with records (dispatcher/stores/layout.py)."""
WRITES = frozenset(
    ["append", "save_snapshot_part", "save_snapshot_manifest", "cut"]
    + [f"{operation} {kind}" for operation in ("put", "update", "transact") for kind in _KINDS]
)
"""The names of the operations that write, as a StoreFaults hook gets them."""
READS = frozenset(
    ["read_log", "last_entry", "load_snapshot"]
    + [f"{operation} {kind}" for operation in ("get", "range", "partitions") for kind in _KINDS]
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
        """Apply one operation atomically and return its result. ConditionFailed is a reply too."""
        if self.faults is not None:
            await self.faults.before(operation)
        refusal = None
        with self._lock:
            self.counts[operation] += 1
            try:
                reply = apply()
            except ConditionFailed as error:
                refusal = error
        if self.faults is not None:
            await self.faults.after(operation)
        if refusal is not None:
            raise refusal
        return reply
