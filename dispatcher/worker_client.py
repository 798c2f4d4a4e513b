"""The gate's client for workers, over HTTP: a signed work order out, events back as they are generated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from typing import Any

import httpx

from dispatcher.model.errors import WorkerFailed
from dispatcher.model.execution_token import EXECUTION_TOKEN_TTL_S, ExecutionToken, cache_salt, digest, sign
from dispatcher.model.worker_protocol import WorkEvent, WorkFinished, WorkOrder, WorkRefused, WorkStarted, WorkToken
from dispatcher.ports import Clock, Worker

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
RETRY_AFTER_MAX_S = 86_400.0


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
                    over = isinstance(event, WorkFinished | WorkRefused)
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
                    event = _event(json.loads(line))
                    if event is not None:
                        yield event
                    if isinstance(event, WorkFinished | WorkRefused):
                        await _read_out(lines)
                        return
        finally:
            await response.aclose()

    def _request(self, worker: Worker, order: WorkOrder) -> httpx.Request:
        order = replace(order, cache_salt=cache_salt(order.tenant, self._secret))
        # Not in ASCII, which would take up to three times the bytes that the tenant's own request took.
        body = json.dumps(asdict(order), separators=(",", ":"), ensure_ascii=False).encode()
        grant = ExecutionToken(
            worker=worker.id,
            tenant=order.tenant,
            invocation=order.invocation,
            attempt=order.attempt,
            slot=order.slot,
            expires_at=self._clock.now() + EXECUTION_TOKEN_TTL_S,
            body_digest=digest(body),
        )
        headers = {"authorization": f"Bearer {sign(grant, self._secret)}", "content-type": "application/json"}
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


def _event(said: Any) -> WorkEvent | None:
    """None for what is only a sign of life. Raises ValueError for what no worker says."""
    match said:
        case {"event": "alive"}:
            return None
        case {"event": "started", "input_tokens": int(input_tokens)}:
            return WorkStarted(input_tokens)
        case {"event": "token", "text": str(text), "output_tokens": int(output_tokens)}:
            return WorkToken(text, output_tokens)
        case {"event": "finished", "reason": str(reason), "input_tokens": int(read), "output_tokens": int(generated)}:
            return WorkFinished(reason, read, generated)
        case {"event": "refused", "status": int(status), "code": str(code), "message": str(message)}:
            return WorkRefused(status, code, message, _seconds(said.get("retry_after_s")))
    raise ValueError("not an event")


def _refusal(status: int, line: bytes) -> WorkRefused:
    try:
        said = json.loads(line)
        return WorkRefused(status, str(said["code"]), str(said["message"]), _seconds(said.get("retry_after_s")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return WorkRefused(status, "worker_refused", "The worker refused the request.")


def _seconds(said: Any) -> float | None:
    """Within what a client may be told; None for what is no such number."""
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return float(said) if is_number and 0 <= said <= RETRY_AFTER_MAX_S else None
