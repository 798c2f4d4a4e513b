"""A load balancer for tests: one address before several servers, each connection to the next of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from urllib.parse import urlsplit


class Balancer:
    """Passes bytes between callers and servers. `taken`: the connections of each server, by its port."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._ports = cycle([_port(url) for url in urls])
        self._left_out: set[int] = set()
        self.taken: Counter[int] = Counter()

    def leave_out(self, url: str) -> None:
        """Pass no further connection to this server."""
        self._left_out.add(_port(url))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield the address."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = next(port for port in self._ports if port not in self._left_out)
        self.taken[port] += 1
        own_reader, own_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_passed(reader, own_writer), _passed(own_reader, writer))


def _port(url: str) -> int:
    return int(urlsplit(url).port or 0)


async def _passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
