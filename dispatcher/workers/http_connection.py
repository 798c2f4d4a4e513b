"""One HTTP/1.1 connection to a worker, as callbacks: an order and its answer take no task, no timer and no generator.

A connection carries one order at a time, and llhttp parses its answer. After an answer that ended cleanly it may carry
the next order. `NotSent` and `BrokenConnection` tell whether the worker may have the order.

An answer is taken as it is: no redirect is followed, no cookie kept, nothing decompressed, and no proxy stands between.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

SILENCE_S = 10.0
"""A worker sends a line at least every 2 s. A worker that sends nothing for this time is dead or cannot be reached. The
head of an answer must be complete in this time after the order."""
CLOSING_S = 1.0
"""The longest wait for the end of the answer after the last event. The connection is reused only if the end arrives."""
IDLE_S = 2.0
"""Idle connections are closed after this time. A worker keeps them longer, so it never closes one that an order
uses."""
BARE_BYTES_MAX = 65_536
"""The most bytes in a row that have no byte of a body between them: heads, chunk extensions and trailers."""


class NotSent(Exception):
    """No byte of the order was sent, so the worker certainly did not begin. The text is the name of the error."""


class BrokenConnection(Exception):
    """The worker sent no valid answer, or stopped within it. It may have begun. The text is the name of the error."""


class AnswerReceiver(Protocol):
    """The receiver of one answer. No method is called from within `post` or a method of the exchange.

    After `on_end` or `on_broken` comes nothing more.
    """

    def on_head(self, status: int) -> None: ...

    def on_body(self, data: bytes) -> None:
        """Take the next bytes of the body as they were sent."""
        ...

    def on_end(self) -> None:
        """The answer is complete. Then `release` or `close` follows."""
        ...

    def on_broken(self, error: NotSent | BrokenConnection) -> None:
        """The order was not sent, or its connection broke within the answer. The connection is closed."""
        ...


class Exchange(Protocol):
    """One order and its answer. After `release`, `close` or the end of the connection, nothing here has an effect."""

    def pause(self) -> None:
        """Stop reading. While a connection is paused, it may be silent."""
        ...

    def resume(self) -> None: ...

    def release(self) -> None:
        """Leave the connection for the next order if the answer ends cleanly within CLOSING_S. Nothing more of it is
        delivered."""
        ...

    def close(self) -> None:
        """Close the connection at once. Nothing more is delivered."""
        ...


class Address(NamedTuple):
    host: str
    port: int
    is_tls: bool
    head: str
    """The lines of a request that are the same for each order to this address."""


_URL = re.compile(r"(?i:(http|https))://(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z._-]+)(?::([0-9]{1,5}))?(/[!-\"$->@-~]*)?")
_VALUE = re.compile(r"[\t -~]*")
"""A header's value, without characters that could end its line."""


@lru_cache(maxsize=4096)
def parse_address(url: str) -> Address:
    """Raises ValueError for what is no address of a server."""
    found = _URL.fullmatch(url)
    if found is None or not 0 < int(found[3] or 80) < 65536:
        raise ValueError("not an HTTP address")
    is_tls = found[1].lower() == "https"
    place = found[2] if found[3] is None else f"{found[2]}:{found[3]}"
    head = f"POST {found[4] or '/'} HTTP/1.1\r\nhost: {place}\r\naccept-encoding: identity\r\n"
    return Address(found[2].strip("[]"), int(found[3] or (443 if is_tls else 80)), is_tls, head)


def encode_request(address: Address, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the request as bytes. Raises ValueError for a header that is none."""
    lines = ""
    for name, value in headers.items():
        if _VALUE.fullmatch(value) is None:
            raise ValueError(f"a character of the header {name} is not allowed")
        lines += f"{name}: {value}\r\n"
    return f"{address.head}{lines}content-length: {len(body)}\r\n\r\n".encode("ascii") + body


class ConnectionPool(Protocol):
    """Where a connection belongs. Each method is called from the event loop."""

    def use(self, connection: HttpConnection) -> None:
        """The connection carries an order from now on."""
        ...

    def keep(self, connection: HttpConnection) -> None:
        """The connection is idle: the next order may use it."""
        ...

    def remove(self, connection: HttpConnection) -> None:
        """The connection is closed. This may come twice."""
        ...


class HttpExchange:
    """Exchange over an HttpConnection. `connection` is None before the order is sent, and after the exchange."""

    __slots__ = ("answer", "connecting", "connection", "order")

    def __init__(self, answer: AnswerReceiver) -> None:
        self.answer: AnswerReceiver | None = answer
        """None after the exchange: nothing more is delivered."""
        self.order = b""
        self.connecting: asyncio.Task[None] | None = None
        self.connection: HttpConnection | None = None

    def pause(self) -> None:
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.resume()

    def release(self) -> None:
        if (connection := self._leave()) is not None:
            connection.release()

    def close(self) -> None:
        if (connection := self._leave()) is not None:
            connection.close()
        elif self.connecting is not None:
            self.connecting.cancel()

    def fail(self, error: NotSent | BrokenConnection) -> None:
        answer, self.connecting = self.answer, None
        self._leave()
        if answer is not None:
            answer.on_broken(error)

    def _leave(self) -> HttpConnection | None:
        connection, self.connection, self.answer = self.connection, None, None
        return connection


class HttpConnection(asyncio.Protocol):
    """One connection to a worker. Without an exchange it waits for the end of the last answer, or it is idle.

    The parser calls the methods from `on_message_begin` to `on_message_complete`. They only take notes. The receiver of
    the answer is called after the parser has returned, because it may close the connection or send the next order.
    """

    def __init__(self, pool: ConnectionPool, address: Address, exchange: HttpExchange) -> None:
        self.address = address
        self._pool = pool
        self._time = asyncio.get_running_loop().time
        self._exchange: HttpExchange | None = exchange
        self._transport: asyncio.Transport
        self._parts: list[bytes] = []
        """The bytes of the body that are not delivered yet."""
        self.on_body = self._parts.append
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._is_idle = self._is_paused = False
        self._since = 0.0
        """When the connection became idle or was released; otherwise when the order was sent or the last bytes of its
        answer arrived."""
        self._forget_answer()

    def _forget_answer(self) -> None:
        self._status = 0
        self._bare_bytes = 0
        self._body_parts = 0
        self._is_framed = self._is_kept = self._is_complete = self._is_spoilt = False
        self._has_head = self._has_end = False
        """What the receiver has got."""

    # ── The transport ──────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        with suppress(OSError, AttributeError):  # on Linux: a stopped worker may never accept the rest of an order
            made = transport.get_extra_info("socket")
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SILENCE_S))
        exchange = self._exchange
        if exchange is None or exchange.answer is None:  # closed meanwhile
            self.close()
        else:
            self.send(exchange)

    def data_received(self, data: bytes) -> None:
        if self._is_idle or self._parser is None:  # nothing was asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._is_spoilt = True
        self._bare_bytes = 0 if self._parts else self._bare_bytes + len(data)
        if self._bare_bytes > BARE_BYTES_MAX:
            self._is_spoilt = True
        exchange = self._exchange
        if exchange is not None:
            if self._status:
                self._since = self._time()
            self._deliver(exchange)
        elif self._parts:  # bytes after the last event
            self.close()
        else:
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        self._parser = None  # it refers to this connection
        self._pool.remove(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.connection = None
        if self._has_end or exchange.answer is None:
            return
        if error is None and self._status and not self._is_framed and not self._is_spoilt:
            exchange.answer.on_end()
        else:
            exchange.fail(BrokenConnection("ConnectionClosed" if error is None else type(error).__name__))

    # ── The parser ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self._is_complete:  # there is more after the answer
            self._is_spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is not None and not self._is_complete and (status := parser.get_status_code()) >= 200:
            self._status = status
            self._is_kept = parser.should_keep_alive()

    def on_message_complete(self) -> None:
        if self._status and not self._is_complete:  # without a status it was an answer of the kind 1xx
            self._is_complete = True
            self._body_parts = len(self._parts)

    # ── The exchange ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_usable(self) -> bool:
        """Whether this idle connection can take an order."""
        return not self._transport.is_closing() and self._time() - self._since < IDLE_S

    def send(self, exchange: HttpExchange) -> None:
        self._forget_answer()
        self._exchange, exchange.connection = exchange, self
        self._is_idle, self._since = False, self._time()
        self._pool.use(self)
        self._transport.write(exchange.order)
        exchange.order = b""

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused, self._since = False, self._time()
            self._transport.resume_reading()

    def release(self) -> None:
        """Wait for the end of the answer without its receiver, and become idle after it."""
        self._exchange, self._since = None, self._time()
        self.resume()
        self._settle()

    def break_off(self, name: str) -> None:
        """Close the connection, and tell the receiver of the answer unless it has the end."""
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None and not self._has_end:
            exchange.fail(BrokenConnection(name))

    def close(self) -> None:
        self._exchange = None
        self._pool.remove(self)
        self._transport.abort()

    def check(self, now: float) -> None:
        """Close the connection if its time is over."""
        past_s = now - self._since
        if self._exchange is None:
            if past_s >= (IDLE_S if self._is_idle else CLOSING_S):
                self.close()
        elif past_s >= SILENCE_S and not self._is_paused:
            self.break_off("SilenceTimeout")

    def _deliver(self, exchange: HttpExchange) -> None:
        """Give the receiver what has arrived. With each call it may pause or end the exchange."""
        body = self._take_body()
        if exchange.answer is not None and self._status and not self._has_head:
            self._has_head = True
            exchange.answer.on_head(self._status)
        if exchange.answer is not None and body and not self._has_end:
            exchange.answer.on_body(body)
        if exchange.answer is None or self._has_end:
            return
        if self._is_complete:
            self._has_end = True
            exchange.answer.on_end()
        elif self._is_spoilt:
            self.break_off("InvalidAnswer")

    def _take_body(self) -> bytes:
        """Return the bytes of the body since the last call, without those of a second answer."""
        parts = self._parts
        if self._is_complete:
            del parts[self._body_parts :]
            self._body_parts = 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def _settle(self) -> None:
        """Become idle if the answer has ended cleanly, after the whole order. Close the connection if it never will."""
        is_clean = self._is_complete and self._is_kept and not self._is_spoilt
        if is_clean and not self._transport.is_closing() and not self._transport.get_write_buffer_size():
            self._is_idle, self._since = True, self._time()
            self._pool.keep(self)
        elif self._is_complete or self._is_spoilt:
            self.close()
