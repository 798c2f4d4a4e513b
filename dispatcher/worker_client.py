"""The gate's HTTP client for workers: it sends a signed work order and yields the events of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

import httpx

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, ExecutionToken, cache_salt, digest, sign
from dispatcher.model.worker_protocol import Alive, Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from dispatcher.worker_wire import encode_order, parse_event

CONNECT_S = 2.0
SILENCE_S = 10.0
"""A worker sends a line at least every 2 s. A worker that sends nothing for this time is dead or cannot be reached."""
CONNECTIONS_MAX = 8192
"""More than a process has calls. An order that had to wait for a connection would not be begun in time, and the gate
would suspend the process."""
IDLE_CONNECTIONS_MAX = 64
IDLE_S = 2.0
"""Idle connections are closed after this time. A worker keeps them longer, so it never closes one that an order
uses."""
CLOSING_S = 1.0
"""The longest wait for the end of the answer after the last event. The connection is reused only if the end arrives."""
LINE_BYTES_MAX = 1_000_000
NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
"""Errors before any byte of the order was sent: the worker certainly did not begin."""


class HttpWorkerClient:
    """One pool of connections to all workers. Create it in the event loop that uses it."""

    def __init__(self, *, secret: bytes, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._secret = secret
        self._clock = clock
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            limits=httpx.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=IDLE_CONNECTIONS_MAX,
                keepalive_expiry=IDLE_S,
            ),
            transport=transport,
            trust_env=False,
        )
        self._closing: set[asyncio.Task[None]] = set()

    async def execute(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Stream an execution. Closing the generator closes the connection, which aborts work that is not durable.

        Raises WorkerFailed if the worker cannot be reached, stops before the last event, is silent, or sends nonsense.
        Its `began` is False only if no connection could be made.
        """
        over = False
        try:
            async with aclosing(self._events(self._request(offer, order))) as events:
                async for event in events:
                    over = isinstance(event, Finished | WorkRefused)
                    yield event
        except NOT_SENT as error:
            raise WorkerFailed(f"The worker cannot be reached: {type(error).__name__}.", began=False) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise WorkerFailed(f"The worker cannot be used: {type(error).__name__}.") from None
        if not over:
            raise WorkerFailed()

    async def close(self) -> None:
        await self._http.aclose()

    async def _events(self, request: httpx.Request) -> AsyncGenerator[WorkEvent, None]:
        """Yield the events up to the one that ends the execution."""
        response = await self._http.send(request, stream=True)
        try:
            async with aclosing(_lines(response)) as lines:
                if response.status_code != 200:
                    yield _refusal(response.status_code, await anext(lines, b""))
                    return
                async for line in lines:
                    event = parse_event(line)
                    if isinstance(event, Alive):
                        continue
                    yield event
                    if isinstance(event, Finished | WorkRefused):
                        await _read_out(lines)
                        return
        finally:
            await self._close(response)

    async def _close(self, response: httpx.Response) -> None:
        """Close the answer, even if the calling task is cancelled meanwhile.

        A cancelled close leaves its connection in the pool for ever, and the pool holds at most CONNECTIONS_MAX.
        (httpcore shields the close with anyio, but that does not stop a cancellation of the task itself.)
        """
        closing = asyncio.ensure_future(response.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    def _request(self, offer: Offer, order: WorkOrder) -> httpx.Request:
        order = replace(order, cache_salt=cache_salt(order.tenant, self._secret))
        body = encode_order(order)
        token = ExecutionToken(
            worker=offer.worker,
            invocation=order.invocation,
            attempt=order.attempt,
            expires_at=self._clock.now() + EXECUTION_TOKEN_TTL_S,
            body_digest=digest(body),
        )
        headers = {"authorization": f"Bearer {sign(token, self._secret)}", "content-type": "application/json"}
        return self._http.build_request("POST", f"{offer.url}/v1/execute", content=body, headers=headers)


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Split the answer at line feeds only, unlike httpx. The last line needs no line feed.

    Raises ValueError for a line of more than LINE_BYTES_MAX bytes.
    """
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
    if rest:
        yield rest


async def _read_out(lines: AsyncGenerator[bytes, None]) -> None:
    """Read to the end of the answer, so that its connection can be used again. Ignore errors after the last event."""
    with suppress(httpx.HTTPError, ValueError, TimeoutError):
        async with asyncio.timeout(CLOSING_S):
            async for _ in lines:
                return  # more lines after the last event: close the connection instead


def _refusal(status: int, line: bytes) -> WorkRefused:
    """Return the refusal in the body of an HTTP error, or a refusal without details if the body contains none."""
    try:
        event = parse_event(line)
    except ValueError:
        event = None
    if isinstance(event, WorkRefused):
        return replace(event, status=status)
    return WorkRefused(status, "worker_refused", "The worker refused the request.")
