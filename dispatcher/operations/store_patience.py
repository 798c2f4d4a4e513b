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

T = TypeVar("T")


async def in_time(request: Awaitable[T]) -> T:
    """Return the result of a request to the store. Raises StoreUnavailable after STORE_PATIENCE_S."""
    try:
        async with asyncio.timeout(STORE_PATIENCE_S):
            return await request
    except TimeoutError:
        raise StoreUnavailable("The store does not answer.") from None
