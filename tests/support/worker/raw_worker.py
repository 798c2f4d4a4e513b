"""A worker's server as bare sockets: it takes orders, and answers each by a script that may break HTTP or the wire."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from dispatcher.model.commands import Offer
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent
from dispatcher.workers import connections, http_connection
from dispatcher.workers.wire import encode_event
from tests.support.hang_guard import HANG_S

EVENTS: list[WorkEvent] = [Started(1), Token("a", 1), Finished("stop", 1, 1)]
LINES = [encode_event(event) for event in EVENTS]
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return a chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gate wait for a worker as long as a test may: a process that stands still for seconds changes nothing.

    A test that is about one of these times shortens it, if need be only once its order has arrived.
    """
    monkeypatch.setattr(connections, "CONNECT_S", HANG_S)
    for name in ("SILENCE_S", "CLOSING_S", "IDLE_S"):
        monkeypatch.setattr(http_connection, name, HANG_S)


class Connection:
    """One connection to the worker."""

    def __init__(self, worker: RawWorker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._worker = worker

    async def order(self) -> None:
        """Read one order and note it. Raises IncompleteReadError if the gate closes the connection."""
        head = await self.head()
        body = await self.body(head)
        self._worker.heads.append(head)
        self._worker.orders.append(json.loads(body)["invocation"])

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def body(self, head: bytes) -> bytes:
        return await self.reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))

    async def chunk(self, data: bytes) -> None:
        await self.send(chunk(data))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> None:
        """Answer an order as a worker does."""
        await self.send(HEAD)
        for line in LINES:
            await self.chunk(line)
        await self.send(b"0\r\n\r\n")

    def die(self) -> None:
        """Do what the kernel does for a killed process: close the socket, whatever waits in it."""
        self.writer.transport.abort()

    def hang_up(self) -> None:
        """Close the connection at once, before anything else can run in this event loop."""
        with socket.socket(fileno=os.dup(self.writer.get_extra_info("socket").fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)


Script = Callable[[Connection], Awaitable[None]]


async def serve_well(connection: Connection) -> None:
    while True:
        await connection.order()
        await connection.answer()


class RawWorker:
    """`orders`: the invocations of all orders that arrived whole. `heads`: their heads."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.orders: list[str] = []
        self.heads: list[bytes] = []
        self.last: Connection
        """The newest connection."""
        self.offer = Offer("i", 1, "w", "", 0)
        self._open: set[asyncio.Task[None]] = set()

    async def abandoned(self) -> None:
        """Wait until the gate has closed all connections."""
        while self._open:
            await asyncio.wait(self._open)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.last = Connection(self, reader, writer)
        task = asyncio.ensure_future(self._serve(self.last))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def stop(self) -> None:
        for task in self._open:
            task.cancel()
        await self.abandoned()

    async def _serve(self, connection: Connection) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.script(connection)
                await connection.reader.read()
        finally:
            connection.die()


@asynccontextmanager
async def raw_worker(
    script: Script = serve_well, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawWorker]:
    """Serve on a free port of this machine."""
    worker = RawWorker(script)
    server = await asyncio.start_server(worker.accept, host, 0, backlog=2048, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    place = f"[{host}]" if ":" in host else host
    worker.offer = Offer("i", 1, "w", f"{'http' if tls is None else 'https'}://{place}:{port}", 0)
    try:
        yield worker
    finally:
        server.close()
        await worker.stop()
