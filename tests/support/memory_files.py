"""The bytes of files in memory, for tests in virtual time: threads have no place there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable

from dispatcher.model.batches import UnknownFile

READ_BYTES = 1000


class MemoryFiles:
    """dispatcher.model.batches.FileStore."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> int:
        content = b"".join([part async for part in parts])
        await asyncio.sleep(0)
        self.blobs[name] = content
        return len(content)

    async def read(self, name: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        if name not in self.blobs:
            raise UnknownFile()
        content = self.blobs[name]
        for at in range(start, len(content), READ_BYTES):
            await asyncio.sleep(0)
            yield content[at : at + READ_BYTES]

    async def delete(self, name: str) -> None:
        self.blobs.pop(name, None)

    async def delete_older(self, age_s: float) -> None:
        return None
