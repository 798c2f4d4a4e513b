"""Bounds how long a caller waits for the store. (The link bounds its wait for the log: service/link/log_watch.py.)

The stores repeat a request for several seconds, which is right for the gate's own work. A caller learns sooner that the
store is away. A write that is cut off may still be applied, as after any other StoreUnavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dispatcher.model.errors import StoreUnavailable

STORE_PATIENCE_S = 1.5
COLD_PATIENCE_S = 6.0
"""Until the store has answered this process once: it makes connections, and a new sandbox of Lambda is slow."""

T = TypeVar("T")


class StorePatience:
    """A process's patience with its store. `seconds`: with the next request."""

    def __init__(self) -> None:
        self.seconds = COLD_PATIENCE_S

    async def in_time(self, request: Awaitable[T]) -> T:
        """Return the result of a request to the store. Raises StoreUnavailable after `seconds`."""
        try:
            async with asyncio.timeout(self.seconds):
                result = await request
        except TimeoutError:
            raise StoreUnavailable("The store does not answer.") from None
        self.seconds = STORE_PATIENCE_S
        return result


OF_THIS_PROCESS = StorePatience()
in_time = OF_THIS_PROCESS.in_time
