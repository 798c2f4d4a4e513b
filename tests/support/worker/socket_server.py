"""An OpenAI-compatible server behind a real socket that answers by a script, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.worker.openai_server import CARD

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

RawScript = Callable[[], AsyncGenerator[bytes, None]]


@dataclass
class SocketServer:
    """`script` yields the bytes of the whole answer, headers included. Then the server closes the connection.

    `hung_up`: set when the client closes a connection whose answer is not over.
    """

    script: RawScript
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[SocketServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}/v1"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = json.dumps({"data": [CARD]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        else:
            lengths = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].split(b":")[1]))
            answering = asyncio.ensure_future(self._answer(writer))
            leaving = asyncio.ensure_future(reader.read())
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.hung_up.set()
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        async for part in self.script():
            writer.write(part)
            await writer.drain()
