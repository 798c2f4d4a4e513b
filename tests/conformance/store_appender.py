"""Appends to a log as one of several writers: each entry at the next free position, as often as it takes.

As a program (`python -m tests.conformance.store_appender WRITER COUNT ADDRESS…`) it prints the position of each entry
that was acknowledged, one a line, at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from dispatcher.ports import Log
from dispatcher.processes.bootstrap import RealClock
from tests.conformance.store_backends import open_store
from tests.conformance.store_world import SHARD


async def append_all(log: Log, writer: str, count: int, acknowledged: Callable[[int], None]) -> None:
    position = 0
    for number in range(count):
        entry = f"{writer}/{number}".encode()
        while await log.append(position, entry) != entry:
            position += 1
        acknowledged(position)


async def main(writer: str, count: str, *address: str) -> None:
    store = open_store(address, RealClock())
    await append_all(store.log(SHARD), writer, int(count), lambda position: print(position, flush=True))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
