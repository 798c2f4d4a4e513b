"""The gate's client for workers: it sends a signed work order and yields the events of the answer.

A work order goes out in one POST, and the bytes of the answer come back. `Connections` is the interface, so that tests
can put an application in memory behind it. `AiohttpConnections` implements it with aiohttp: httpx takes 1.6 ms of CPU
time more per request of ten lines.

An order must not be sent twice, because a worker would execute it twice. aiohttp repeats only requests of idempotent
methods on a connection that turns out to be closed, and a POST is none (tests/unit/worker/test_worker_sockets.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Protocol

import aiohttp

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken, FleetSecrets, cache_salt, digest, sign
from dispatcher.model.worker_protocol import Alive, Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from dispatcher.workers.wire import encode_order, parse_event

CLOSING_S = 1.0
"""The longest wait for the end of the answer after the last event. The connection is reused only if the end arrives."""
LINE_BYTES_MAX = 1_000_000


class HttpWorkerClient:
    """ports.WorkerClient over HTTP."""

    def __init__(self, *, secrets: FleetSecrets, clock: Clock, connections: Connections | None = None) -> None:
        self._secrets = secrets
        self._clock = clock
        self._connections = connections or AiohttpConnections()

    async def execute(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Stream an execution. Closing the generator closes the connection, which aborts work that is not durable.

        Raises WorkerFailed if the worker cannot be reached, stops before the last event, is silent, or sends nonsense.
        Its `began` is False only if no byte of the order was sent.
        """
        over = False
        try:
            async with aclosing(self._events(offer, order)) as events:
                async for event in events:
                    over = isinstance(event, Finished | WorkRefused)
                    yield event
        except NotSent as error:
            raise WorkerFailed(f"The worker cannot be reached: {error}.", began=False) from None
        except BrokenConnection as error:
            raise WorkerFailed(f"The worker cannot be used: {error}.") from None
        except ValueError as error:
            raise WorkerFailed(f"The worker cannot be used: {type(error).__name__}.") from None
        if not over:
            raise WorkerFailed()

    async def close(self) -> None:
        await self._connections.close()

    async def _events(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Yield the events up to the one that ends the execution."""
        body = encode_order(replace(order, cache_salt=cache_salt(order.terms.tenant, self._secrets.signing)))
        answer = await self._connections.post(f"{offer.url}/v1/execute", self._headers(offer, order, body), body)
        try:
            async with aclosing(_lines(answer)) as lines:
                if answer.status != 200:
                    yield _refusal(answer.status, await anext(lines, b""))
                    return
                async for line in lines:
                    event = parse_event(line)
                    if isinstance(event, Alive):
                        continue
                    yield event
                    if isinstance(event, Finished | WorkRefused):
                        await _read_out(answer)
                        return
        finally:
            answer.close()

    def _headers(self, offer: Offer, order: WorkOrder, body: bytes) -> dict[str, str]:
        token = ExecutionToken(
            worker=offer.worker,
            invocation=order.invocation,
            attempt=order.attempt,
            expires_at=self._clock.now() + EXECUTION_TOKEN_TTL_S,
            body_digest=digest(body),
        )
        return {"authorization": f"Bearer {sign(token, self._secrets.signing)}", "content-type": "application/json"}


async def _lines(answer: WorkerAnswer) -> AsyncGenerator[bytes, None]:
    """Split the answer at line feeds only. The last line needs no line feed.

    Raises Broken, and ValueError for a line of more than LINE_BYTES_MAX bytes.
    """
    rest = bytearray()
    while chunk := await answer.read():
        rest += chunk
        if b"\n" in chunk:
            *lines, last = bytes(rest).split(b"\n")
            for line in lines:
                yield line
            rest = bytearray(last)
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
    if rest:
        yield bytes(rest)


async def _read_out(answer: WorkerAnswer) -> None:
    """Read to the end of the answer, so that its connection can be used again. Ignore errors after the last event."""
    with suppress(BrokenConnection, TimeoutError):
        async with asyncio.timeout(CLOSING_S):
            await answer.read()  # bytes after the last event: the connection is closed instead


def _refusal(status: int, line: bytes) -> WorkRefused:
    """Return the refusal in the body of an HTTP error, or a refusal without details if the body contains none."""
    try:
        event = parse_event(line)
    except ValueError:
        event = None
    if isinstance(event, WorkRefused):
        return replace(event, status=status)
    return WorkRefused(status, "worker_refused", "The worker refused the request.")


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


_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    aiohttp.NonHttpUrlClientError,
)
"""aiohttp raises these before it has a connection. All its other errors can come after it began to write."""
_BROKEN = (aiohttp.ClientError, OSError, RuntimeError, ValueError)
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
        except _NOT_SENT as error:
            raise NotSent(type(error).__name__) from None
        except _BROKEN as error:
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
        except _BROKEN as error:
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
