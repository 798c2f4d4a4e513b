"""ports.Transport over TCP: each frame is its length in four bytes, then its bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dispatcher.model.errors import BadFrame, ConfigurationError, ConnectionLost
from dispatcher.ports import Connection
from dispatcher.service.frames import FRAME_MAX

_LENGTH_BYTES = 4
UNSENT_MAX = 8_000_000
"""The most bytes that may wait for a slow reader. With more, the reader is disconnected."""
CONNECT_S = 1.0
CONNECTIONS_MAX = 4096
_OVERHEAD_MAX = 64
"""The most bytes that a signature adds to a frame."""


class TcpConnection:
    """ports.Connection over asyncio streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, frame: bytes) -> None:
        transport = self._writer.transport
        if transport.is_closing():
            raise ConnectionLost()
        if transport.get_write_buffer_size() + len(frame) > UNSENT_MAX:
            transport.abort()
            raise ConnectionLost("The other process does not read what it is sent.")
        self._writer.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)

    async def receive(self) -> bytes:
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > FRAME_MAX + _OVERHEAD_MAX:
                self._writer.transport.abort()
                raise BadFrame("A frame is too large.")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            self.close()
            raise ConnectionLost() from None

    def close(self) -> None:
        self._writer.close()
        self._reader.feed_eof()  # at once; the transport alone would do it only after all data are sent


class TcpListener:
    def __init__(self, server: asyncio.Server, host: str) -> None:
        self._server = server
        self._address = f"{host}:{server.sockets[0].getsockname()[1]}"
        self.connections: dict[TcpConnection, asyncio.Task[None] | None] = {}

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        """Accept no more connections, and close the open ones."""
        self._server.close()
        for connection in list(self.connections):
            connection.close()


class TcpTransport:
    """ports.Transport."""

    async def connect(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=FRAME_MAX)
        except ConnectionRefusedError:
            raise ConnectionLost(f"No process listens at {address}.", refused=True) from None
        except (OSError, TimeoutError, UnicodeError):  # UnicodeError: the host is no name of a host
            raise ConnectionLost(f"{address} cannot be reached.") from None
        return TcpConnection(reader, writer)

    async def listen(self, address: str, serve: Callable[[Connection], Awaitable[None]]) -> TcpListener:
        """Accept connections at "host:port". Raises ConfigurationError if the port cannot be used."""
        host, port = split_address(address)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = TcpConnection(reader, writer)
            if len(listener.connections) >= CONNECTIONS_MAX:
                return connection.close()
            listener.connections[connection] = asyncio.current_task()
            try:
                with suppress(ConnectionLost):
                    await serve(connection)
            finally:
                del listener.connections[connection]
                connection.close()

        try:
            server = await asyncio.start_server(accepted, host, port, limit=FRAME_MAX, backlog=CONNECTIONS_MAX)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror or error}") from None
        listener = TcpListener(server, host)
        return listener


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port". Raises ConnectionLost for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConnectionLost(f"{address[:100]!r} is not host:port.")
    return host.strip("[]"), int(port)
