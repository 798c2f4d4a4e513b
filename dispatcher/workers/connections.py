"""The gate's connections to its workers: one pool, with one timer for all of them.

An order goes out on the idle connection to its worker that was used last, or on a new one. It is never sent twice,
because a worker would execute it twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Protocol

from dispatcher.workers.http_connection import (
    Address,
    AnswerReceiver,
    Exchange,
    HttpConnection,
    HttpExchange,
    NotSent,
    encode_request,
    parse_address,
)

CONNECT_S = 2.0
SWEEP_S = 0.5
"""One timer looks this often whether a connection has been silent, idle or without an end for too long."""
CONNECTIONS_MAX = 8192
"""More than a process has calls. An order that had to wait for a connection would not be begun in time, and the gate
would suspend the process."""


class Connections(Protocol):
    def post(self, url: str, headers: Mapping[str, str], body: bytes, answer: AnswerReceiver) -> Exchange:
        """Send an order, once: now on an idle connection, or as soon as there is a new one."""
        ...

    async def close(self) -> None: ...


class HttpConnections:
    """One pool of connections to all workers. It belongs to the event loop in which the first order is sent."""

    def __init__(self) -> None:
        self.busy: set[HttpConnection] = set()
        """The connections that carry an order, or wait for the end of its answer."""
        self._idle: dict[Address, list[HttpConnection]] = {}
        """The last one was used last."""
        self._connecting = 0
        self._tasks: dict[asyncio.Task[None], HttpExchange] = {}
        """Each connects for its order."""
        self._waiting: list[asyncio.Future[None]] = []
        """Orders that wait until fewer than CONNECTIONS_MAX connections are in use."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

    def post(self, url: str, headers: Mapping[str, str], body: bytes, answer: AnswerReceiver) -> Exchange:
        loop = asyncio.get_running_loop()
        exchange = HttpExchange(answer)
        try:
            address = parse_address(url)
        except ValueError:
            loop.call_soon(exchange.fail, NotSent("InvalidURL"))
            return exchange
        exchange.order = encode_request(address, headers, body)
        if self._is_closed:
            loop.call_soon(exchange.fail, NotSent("ConnectionsClosed"))
        elif self._is_full or not self._send_on_idle(address, exchange):
            task = exchange.connecting = loop.create_task(self._connect(address, exchange))
            self._tasks[task] = exchange
            task.add_done_callback(self._tasks.pop)
        if self._sweeping is None:
            self._sweeping = loop.call_later(SWEEP_S, self._sweep)
        return exchange

    async def close(self) -> None:
        """Close all connections. Orders that run are broken."""
        self._is_closed = True
        for connection in self._all():
            connection.break_off("ConnectionsClosed")
        for task, exchange in self._tasks.items():
            exchange.fail(NotSent("ConnectionsClosed"))
            task.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close their sockets in this turn of the loop

    @property
    def _is_full(self) -> bool:
        return len(self.busy) + self._connecting >= CONNECTIONS_MAX

    def _all(self) -> list[HttpConnection]:
        return [*self.busy, *(each for idle in self._idle.values() for each in idle)]

    def _send_on_idle(self, address: Address, exchange: HttpExchange) -> bool:
        """Send the order on the idle connection that was used last. Return False if there is none."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                connection.send(exchange)
                return True
            connection.close()
        return False

    async def _connect(self, address: Address, exchange: HttpExchange) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                while self._is_full:
                    self._waiting.append(asyncio.get_running_loop().create_future())
                    await self._waiting[-1]
                if not self._send_on_idle(address, exchange):
                    await self._open(address, exchange)
        except Exception as error:
            if exchange.connection is None:
                exchange.fail(NotSent(type(error).__name__))
            else:  # the time was over just when the order was written
                exchange.connection.break_off(type(error).__name__)

    async def _open(self, address: Address, exchange: HttpExchange) -> None:
        """Make a connection, which sends the order."""
        self._connecting += 1
        made = partial(HttpConnection, self, address, exchange)
        try:
            tls = _tls() if address.is_tls else None
            await asyncio.get_running_loop().create_connection(made, address.host, address.port, ssl=tls)
        finally:
            self._connecting -= 1
            self._wake()

    def use(self, connection: HttpConnection) -> None:
        self.busy.add(connection)

    def keep(self, connection: HttpConnection) -> None:
        self.busy.discard(connection)
        self._idle.setdefault(connection.address, []).append(connection)
        self._wake()

    def remove(self, connection: HttpConnection) -> None:
        self.busy.discard(connection)
        if connection in (idle := self._idle.get(connection.address, [])):
            idle.remove(connection)
        self._wake()

    def _wake(self) -> None:
        """Let the orders that wait try again. The first of them is the first to try."""
        if self._waiting:
            for each in self._waiting:
                if not each.done():
                    each.set_result(None)
            self._waiting.clear()

    def _sweep(self) -> None:
        """Close the connections whose time is over. Only while there are connections is there a next sweep."""
        loop = asyncio.get_running_loop()
        for connection in self._all():
            connection.check(loop.time())
        self._idle = {address: idle for address, idle in self._idle.items() if idle}
        is_needed = self.busy or self._idle or self._tasks
        self._sweeping = loop.call_later(SWEEP_S, self._sweep) if is_needed else None


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
