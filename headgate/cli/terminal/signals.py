"""Lets a command run in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any


def interrupted() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set. From now on they do not end the process."""
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
    return over


async def either(work: asyncio.Future[Any], over: asyncio.Event) -> None:
    """Wait until the work is done or a signal arrives. After a signal, cancel the work."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(over.wait())
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if over.is_set() and not work.done():
        work.cancel()
        await asyncio.wait({work})
