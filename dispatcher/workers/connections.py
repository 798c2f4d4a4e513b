"""HTTP connections to workers: a work order goes out in one POST, and the bytes of the answer come back.

`Connections` is the interface, so that tests can put an application in memory behind it. `AiohttpConnections`
implements it with aiohttp: httpx takes 1.6 ms of CPU time more per request of ten lines.

An order must not be sent twice, because a worker would execute it twice. aiohttp repeats only requests of idempotent
methods on a connection that turns out to be closed, and a POST is none (tests/unit/worker/test_worker_sockets.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Protocol

import aiohttp

CONNECT_S = 2.0
SILENCE_S = 10.0
"""A worker sends a line at least every 2 s. A worker that sends nothing for this time is dead or cannot be reached."""
CONNECTIONS_MAX = 8192
"""More than a process has calls. An order that had to wait for a connection would not be begun in time, and the gate
would suspend the process."""
IDLE_S = 2.0
"""Idle connections are closed after this time. A worker keeps them longer, so it never closes one that an order
uses."""


class NotSent(Exception):
    """No byte of the order was sent, so the worker certainly did not begin. The text is the name of the error."""


class BrokenConnection(Exception):
    """The worker sent no valid answer, or stopped within it. It may have begun. The text is the name of the error."""


class WorkerAnswer(Protocol):
    @property
    def status(self) -> int: ...

    async def read(self) -> bytes:
        """Return the next bytes of the body as they were sent, or no bytes at the end of the body. Raises Broken."""
        ...

    def close(self) -> None:
        """Close the connection. If the answer was read to its end, leave the connection for the next order."""
        ...


class Connections(Protocol):
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WorkerAnswer:
        """Send an order, once. Return when the head of the answer has arrived. Raises NotSent, Broken."""
        ...

    async def close(self) -> None: ...


NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    aiohttp.NonHttpUrlClientError,
)
"""aiohttp raises these before it has a connection. All its other errors can come after it began to write."""
BROKEN = (aiohttp.ClientError, OSError, RuntimeError, ValueError)
"""The other errors of aiohttp. A TimeoutError is an OSError. A read raises RuntimeError if its connection is gone."""


class AiohttpConnections:
    """One pool of connections to all workers. It belongs to the event loop in which the first order is sent."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WorkerAnswer:
        session = self._session = self._session or _open()
        try:
            async with asyncio.timeout(CONNECT_S + SILENCE_S):
                response = await session.post(url, data=body, headers=headers, allow_redirects=False)
        except NOT_SENT as error:
            raise NotSent(type(error).__name__) from None
        except BROKEN as error:
            raise BrokenConnection(type(error).__name__) from None
        return _Answer(response)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Answer:
    """One timer watches all reads of an answer. A timeout for each read would cost a tenth of the CPU time of a token.

    aiohttp's own timeout (sock_read) stops at an invalid chunk, and then the reader would wait for ever.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._reading_since: float | None = None
        self._timer = self._loop.call_later(SILENCE_S, self._check)

    @property
    def status(self) -> int:
        return self._response.status

    async def read(self) -> bytes:
        self._reading_since = self._loop.time()
        try:
            return await self._response.content.readany()
        except BROKEN as error:
            raise BrokenConnection(type(error).__name__) from None
        finally:
            self._reading_since = None

    def close(self) -> None:
        self._timer.cancel()
        self._response.close()

    def _check(self) -> None:
        """Fail the read that has waited for SILENCE_S, or look again when it will have."""
        now = self._loop.time()
        since = now if self._reading_since is None else self._reading_since
        if now >= since + SILENCE_S:
            self._response.content.set_exception(aiohttp.SocketTimeoutError())
        else:
            self._timer = self._loop.call_at(since + SILENCE_S, self._check)


def _open() -> aiohttp.ClientSession:
    """Make the pool. A worker's answer is taken as it is: not decompressed, no cookies kept, no proxy between."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_S, socket_factory=_socket),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
        headers={"accept-encoding": "identity"},
        skip_auto_headers=("accept", "user-agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket whose closing takes at most SILENCE_S: a stopped worker may never accept the rest of an order."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SILENCE_S))
    return made
