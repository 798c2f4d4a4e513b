"""Orders and their events over the simulated network, instead of HTTP: what HttpWorkerClient and the server do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from random import Random

from dispatcher.model.commands import Offer
from dispatcher.model.errors import ConnectionLost, WorkerFailed
from dispatcher.model.fleet_secrets import (
    EXECUTION_TOKEN_TTL_S,
    ExecutionToken,
    ExecutionTokenRefused,
    FleetSecrets,
    digest,
    sign,
    verify,
)
from dispatcher.model.worker_protocol import Alive, Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.ports import AttemptEvents, Clock, Connection, RunningAttempt, Transport
from dispatcher.workers.wire import encode_event, encode_order, parse_event, parse_order
from gpu_worker.service.executions.executions import Executions, Refusal
from tests.support.attempts import GeneratedAttempt

SECRETS = FleetSecrets("sixteen characters and more")
CONNECT_S = 2.0
SILENCE_S = 10.0
LATE_COPY_S = 40.0
"""A copy of an order arrives up to so much later: after its token has expired, too."""


class StormWorkerClient:
    """ports.WorkerClient. `duplicates`: chance that the network delivers an order a second time, some time later."""

    def __init__(self, transport: Transport, clock: Clock, random: Random, duplicates: float) -> None:
        self._transport, self._clock, self._random = transport, clock, random
        self.duplicates = duplicates
        self._copies: set[asyncio.Task[None]] = set()

    def execute(self, offer: Offer, order: WorkOrder, events: AttemptEvents) -> RunningAttempt:
        return GeneratedAttempt(self._generate(offer, order), events)

    async def _generate(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        body = encode_order(order)
        token = ExecutionToken(
            offer.worker, order.invocation, order.attempt, self._clock.now() + EXECUTION_TOKEN_TTL_S, digest(body)
        )
        signed = sign(token, SECRETS.signing).encode() + b"\n" + body
        connection = await self._connect(offer.url)
        if self._random.random() < self.duplicates:
            self._copies.add(asyncio.create_task(self._deliver_again(offer.url, signed)))
        try:
            connection.send(signed)
            while True:
                async with asyncio.timeout(SILENCE_S):
                    received = await connection.receive()
                for event in map(parse_event, received.splitlines()):
                    if not isinstance(event, Alive):
                        yield event
                    if isinstance(event, Finished | WorkRefused):
                        return
        except (ConnectionLost, TimeoutError):
            raise WorkerFailed() from None
        finally:
            connection.close()

    async def close(self) -> None: ...

    async def _connect(self, url: str) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._transport.connect(url)
        except (ConnectionLost, TimeoutError):
            raise WorkerFailed(began=False) from None

    async def _deliver_again(self, url: str, signed: bytes) -> None:
        await asyncio.sleep(self._random.random() ** 2 * LATE_COPY_S)
        with suppress(ConnectionLost, TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                connection = await self._transport.connect(url)
                connection.send(signed)
                while True:
                    await connection.receive()


async def serve_orders(connection: Connection, executions: Executions, worker: str, clock: Clock) -> None:
    """Execute one order, as gpu_worker/service/server.py does."""
    signed, _, body = (await connection.receive()).partition(b"\n")
    try:
        token = verify(signed.decode(), SECRETS, worker=worker, body=body, now=clock.now())
        lines = executions.run(token, parse_order(body))
        first = await anext(lines, None)
    except (Refusal, ExecutionTokenRefused) as error:
        return connection.send(encode_event(WorkRefused(409, "refused", str(error))))
    sending = asyncio.create_task(_send(connection, first, lines))
    closed = asyncio.create_task(_closed(connection))
    try:
        await asyncio.wait((sending, closed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        closed.cancel()
        await asyncio.wait((sending, closed))
    return None


async def _send(connection: Connection, first: bytes | None, lines: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(lines):
        with suppress(ConnectionLost):
            if first is not None:
                connection.send(first)
            async for line in lines:
                connection.send(line)


async def _closed(connection: Connection) -> None:
    """Wait until the caller closes the connection."""
    with suppress(ConnectionLost):
        while True:
            await connection.receive()
