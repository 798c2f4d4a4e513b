"""The gate's client for workers, over HTTP: a signed work order out, events back as they are generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

import httpx

from dispatcher.model.errors import WorkerFailed
from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, ExecutionToken, cache_salt, digest, sign
from dispatcher.model.fleet import Worker
from dispatcher.model.worker_protocol import Alive, Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from dispatcher.worker_wire import encode_order, parse_event

CONNECT_S = 2.0
SILENCE_S = 10.0
"""A worker says that it is alive every 2 s: one that says nothing for this long is dead, or cut off."""
CONNECTIONS_MAX = 512
IDLE_CONNECTIONS_MAX = 64
IDLE_S = 2.0
"""Shorter than a worker keeps an idle connection: an order must not meet the end of one."""
CLOSING_S = 1.0
"""How long a worker may take to end its answer after the last event, for its connection to be used again."""
LINE_BYTES_MAX = 1_000_000


class HttpWorkerClient:
    """One pool of connections to all workers; made in the event loop that uses it."""

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

    async def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """Stream an execution. Closing the generator closes the connection, which aborts the work.

        Raises WorkerFailed where the worker cannot be reached, breaks off, or falls silent.
        """
        over = False
        try:
            async with aclosing(self._events(self._request(worker, order))) as events:
                async for event in events:
                    over = isinstance(event, Finished | WorkRefused)
                    yield event
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            raise WorkerFailed(f"The worker cannot be used: {type(error).__name__}.") from None
        if not over:
            raise WorkerFailed()

    async def close(self) -> None:
        await self._http.aclose()

    async def _events(self, request: httpx.Request) -> AsyncGenerator[WorkEvent, None]:
        """Up to the one that ends it, and nothing after."""
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
            await response.aclose()

    def _request(self, worker: Worker, order: WorkOrder) -> httpx.Request:
        order = replace(order, cache_salt=cache_salt(order.tenant, self._secret))
        body = encode_order(order)
        token = ExecutionToken(
            worker=worker.id,
            tenant=order.tenant,
            invocation=order.invocation,
            attempt=order.attempt,
            slot=order.slot,
            expires_at=self._clock.now() + EXECUTION_TOKEN_TTL_S,
            body_digest=digest(body),
        )
        headers = {"authorization": f"Bearer {sign(token, self._secret)}", "content-type": "application/json"}
        return self._http.build_request("POST", f"{worker.url}/v1/execute", content=body, headers=headers)


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Split at line feeds alone, unlike httpx; the last one whatever ends it. Raises ValueError beyond the bound."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError("a line that does not end")
    if rest:
        yield rest


async def _read_out(lines: AsyncGenerator[bytes, None]) -> None:
    """To the end of the answer, else its connection cannot be used again. What goes wrong now matters to nobody."""
    with suppress(httpx.HTTPError, ValueError, TimeoutError):
        async with asyncio.timeout(CLOSING_S):
            async for _ in lines:
                return  # it does not end after all


def _refusal(status: int, line: bytes) -> WorkRefused:
    """Return the refusal in the body of an HTTP error, or one without details if the body holds none."""
    try:
        event = parse_event(line)
    except ValueError:
        event = None
    if isinstance(event, WorkRefused):
        return replace(event, status=status)
    return WorkRefused(status, "worker_refused", "The worker refused the request.")
