"""ports.Transport over TCP: each frame is its length in four bytes, then its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dispatcher.model.errors import BadFrame, ConfigurationError, ConnectionLost
from dispatcher.ports import Connection
from dispatcher.service.frames import FRAME_MAX

_LENGTH_BYTES = 4
UNSENT_MAX = 8_000_000
"""The most bytes that may wait for a slow reader. With more, the reader is disconnected."""
_UNREAD_MAX = 2 * FRAME_MAX
"""With more bytes that this process has not read yet, nothing more is taken from the socket."""
CONNECT_S = 1.0
CONNECTIONS_MAX = 4096
_OVERHEAD_MAX = 64
"""The most bytes that a signature adds to a frame."""


class TcpConnection(asyncio.Protocol):
    """ports.Connection. It takes the frames out of the bytes where they arrive. `made` is called when it is open.

    Both event loops that are used (asyncio's and uvloop) set TCP_NODELAY.
    """

    def __init__(self, made: Callable[[TcpConnection], None] | None = None) -> None:
        self._made = made
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._received: Callable[[bytes], None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        """What `receive` waits for."""
        self._end: asyncio.Future[None] | None = None
        """What `deliver` waits for."""
        self._is_closed = self._is_lost = self._is_paused = self._is_handing_over = False

    # ports.Connection

    def send(self, frame: bytes) -> None:
        transport = self._transport
        if self._is_lost or transport.is_closing():
            raise ConnectionLost()
        if transport.get_write_buffer_size() + len(frame) > UNSENT_MAX:
            transport.abort()
            raise ConnectionLost("The other process does not read what it is sent.")
        transport.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)

    async def receive(self) -> bytes:
        while (frame := self._take_frame()) is None:
            if self._is_lost:
                raise ConnectionLost()
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return frame

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        self._received = received
        self._end = asyncio.get_running_loop().create_future()
        try:
            self._hand_over()
            await self._end
        finally:
            self._received = self._end = None  # an error refers to this call, and so to this object

    def close(self) -> None:
        self._is_closed = True
        self._transport.close()
        self._lose()  # at once; the transport says so only after all data are sent

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a TCP connection it is a Transport
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._received is not None:
            self._hand_over()
            return
        if len(self._unread) > _UNREAD_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        _wake(self._arrival)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    # Frames

    def _hand_over(self) -> None:
        """Call `received` with each frame that is complete. What it raises ends `deliver`, also if it closes too."""
        self._is_handing_over = True
        try:
            while (received := self._received) is not None and (frame := self._take_frame()) is not None:
                received(frame)
            if self._is_lost:
                raise ConnectionLost()
        except Exception as error:
            self._received = None
            self._end_delivery(error)
        finally:
            self._is_handing_over = False

    def _end_delivery(self, error: Exception) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)

    def _take_frame(self) -> bytes | None:
        """Return the next frame; None if it is not complete yet. Raises ConnectionLost, BadFrame."""
        unread = self._unread
        if self._is_closed:
            raise ConnectionLost()
        if len(unread) < _LENGTH_BYTES:
            return None
        end = _LENGTH_BYTES + int.from_bytes(unread[:_LENGTH_BYTES], "big")
        if end > _LENGTH_BYTES + FRAME_MAX + _OVERHEAD_MAX:
            self._transport.abort()
            raise BadFrame("A frame is too large.")
        if len(unread) < end:
            return None
        frame = bytes(unread[_LENGTH_BYTES:end])
        del unread[:end]
        if self._is_paused and len(unread) <= _UNREAD_MAX:
            self._is_paused = False
            self._transport.resume_reading()
        return frame

    def _lose(self) -> None:
        self._is_lost = True
        _wake(self._arrival)
        if not self._is_handing_over:
            self._end_delivery(ConnectionLost())


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class TcpListener:
    def __init__(self, host: str, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._host, self._serve = host, serve
        self._server: asyncio.Server
        self.connections: dict[TcpConnection, asyncio.Task[None]] = {}

    async def listen(self, port: int) -> None:
        """Raises OSError if the port cannot be used."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TcpConnection(self._on_made), self._host, port, backlog=CONNECTIONS_MAX
        )
        self._port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def close(self) -> None:
        """Accept no more connections, and close the open ones."""
        self._server.close()
        for connection in list(self.connections):
            connection.close()

    def _on_made(self, connection: TcpConnection) -> None:
        if len(self.connections) >= CONNECTIONS_MAX:
            connection.close()
        else:
            self.connections[connection] = asyncio.get_running_loop().create_task(self._run(connection))

    async def _run(self, connection: TcpConnection) -> None:
        try:
            with suppress(ConnectionLost):
                await self._serve(connection)
        finally:
            del self.connections[connection]
            connection.close()


class TcpTransport:
    """ports.Transport."""

    async def connect(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(TcpConnection, host, port)
        except ConnectionRefusedError:
            raise ConnectionLost(f"No process listens at {address}.", refused=True) from None
        except (OSError, TimeoutError, UnicodeError):  # UnicodeError: the host is no name of a host
            raise ConnectionLost(f"{address} cannot be reached.") from None
        return connection

    async def listen(self, address: str, serve: Callable[[Connection], Awaitable[None]]) -> TcpListener:
        """Accept connections at "host:port". Raises ConfigurationError if the port cannot be used."""
        host, port = split_address(address)
        listener = TcpListener(host, serve)
        try:
            await listener.listen(port)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror or error}") from None
        return listener


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port". Raises ConnectionLost for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConnectionLost(f"{address[:100]!r} is not host:port.")
    return host.strip("[]"), int(port)
