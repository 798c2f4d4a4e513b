"""Faults of the memory store that several tests inject (MemoryStore.faults), and its answers without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from dispatcher.model.errors import StoreUnavailable

T = TypeVar("T")


def run_at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return what a call of a memory store without faults returns: it never waits."""
    try:
        call.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("the call waits")


@dataclass
class Slow:
    """Each request takes `delay_s` before it is applied. `operation` names the only one that does."""

    delay_s: float
    operation: str = ""

    async def before(self, operation: str) -> None:
        await asyncio.sleep(self.delay_s if self.operation in ("", operation) else 0)

    async def after(self, operation: str) -> None: ...


class FailsOnce:
    """The table is out of reach for the first request of the kind named."""

    def __init__(self, operation: str, *, applied: bool) -> None:
        self.operation = operation
        self.applied = applied

    async def before(self, operation: str) -> None:
        if not self.applied:
            self._fail(operation)

    async def after(self, operation: str) -> None:
        if self.applied:
            self._fail(operation)

    def _fail(self, operation: str) -> None:
        if operation == self.operation:
            self.operation = ""
            raise StoreUnavailable()
