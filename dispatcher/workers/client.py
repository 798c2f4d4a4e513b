"""The gate's client for workers: it sends a signed work order and yields the events of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

from dispatcher.model.commands import Offer
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken, FleetSecrets, cache_salt, digest, sign
from dispatcher.model.worker_protocol import Alive, Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from dispatcher.workers.connections import AiohttpConnections, BrokenConnection, Connections, NotSent, WorkerAnswer
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
