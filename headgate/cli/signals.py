"""Commands that run in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any


def interrupted() -> asyncio.Event:
    """Return an event that a signal sets, from now on instead of ending the process."""
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
    return over


async def either(work: asyncio.Future[Any], over: asyncio.Event) -> None:
    """Wait until the work is done or a signal came; then cancel the work."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(over.wait())
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if over.is_set() and not work.done():
        work.cancel()
        await asyncio.wait({work})
