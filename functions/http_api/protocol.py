"""uvicorn's protocol of one connection: which heads it serves, how it refuses, and how a connection ends.

uvicorn waits for ever for the head of a request. Connections that send none would use up the process's file
descriptors, and no tenant could connect any more. They are closed here after `idle_s`. What follows the head is
bounded in functions/http_api/connections.py.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dispatcher.model.errors import AnsweredError, InvalidRequest
from dispatcher.processes.bootstrap import RealIds
from functions.http_api.connections import LOSSES, Losses
from functions.http_api.refusals import ID_HEADER

IDLE_S = 10.0
_HEAD_BYTES_MAX = 65_536
_HEADERS_MAX = 256
_PIPELINED_MAX = 100
"""How many requests of a connection may wait while an earlier one is answered."""
_STALLED_CHECKS_MAX = 3
"""A closing connection is dropped after so many times `idle_s` if its caller reads nothing."""
_BYTES_PER_BODY_BYTE = 16
"""How many bytes of a chunked body may surround each byte of its content, beyond _HEAD_BYTES_MAX in total."""


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol of one connection, which serves no head that another server could read in another way.

    llhttp accepts more than RFC 9112 allows, uvicorn bounds no head, and neither reads the body of a request that asks
    for another protocol. So this class refuses: versions other than 1.0 and 1.1, transfer encodings other than
    `chunked`, a request without a host, a fragment, CONNECT, and what is too large. It serves a request with `Upgrade`
    as if that header were missing (RFC 9110, section 7.8), and ignores trailers: they would become headers.

    A refusal is the last answer of a connection. It follows the answers to the requests before it. Then the connection
    is closed for writing and read to its end: with unread bytes, the kernel would reset it, and the answer would be
    lost. The same holds for the app's last answer if the body of its request is not read.

    `cycle` is the last request; None before the first one and after a refusal.
    """

    idle_s = IDLE_S
    """A connection that brings no whole head of a request for this time, or up to twice this time, is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._losses = Losses(transport.abort)
        self._ending = _Ending(self)
        self._last_request: RequestResponseCycle | None = None
        self._was_answered = True
        """What the last check saw: the request, and whether it was answered by then."""
        self._head_timer = asyncio.get_running_loop().call_later(self.idle_s, self._check_head)
        self._overhead = 0
        """Bytes since the last head or body ended, less those of content. At most one read is not counted."""
        self._read_bytes = 0
        """What `_overhead` was before the last read, and the size of that read: no head that ends in it is larger."""
        self._is_in_body = False
        """Whether a head was accepted, and its body and trailers are not complete."""
        self._resumes = False
        """Whether the parser reads the head that `_resume` makes."""
        self._refusal: AnsweredError | None = None
        self._is_ended = False
        """Whether all that arrives from now on is ignored."""
        self._unsent, self._stalled = 0, 0
        """A closing connection had so many bytes to send at the last check, and so many checks found no change."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)
        self._losses.happen()
        self._ending.end = self.transport.close  # no cycle of references stays for the garbage collector

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_ended:
            return
        self._overhead = self._read_bytes = self._overhead + len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or _invalid("its syntax is wrong"))
        else:
            if self._overhead > _HEAD_BYTES_MAX:
                self._refuse(_TOO_LARGE)

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._resume() + data[upgrade.args[0] :]

    def _resume(self) -> bytes:
        """Replace the parser, which reads no body after `Upgrade`, and return a head for the new one.

        The new parser gets only what it needs to find the body's end: its callbacks ignore this head.
        """
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._resumes = True
        lengths = [b"%s: %s\r\n" % each for each in self.headers if each[0] in (b"content-length", _ENCODING)]
        return b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(lengths)

    def _should_upgrade_to_ws(self) -> bool:
        return False

    def on_message_begin(self) -> None:
        if not self._resumes:
            self._overhead = 0
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._resumes:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of a head. White space at the end is no part of its value (RFC 9110, section 5.5)."""
        if self._is_in_body:
            return
        name, value = name.lower(), value.rstrip(b" \t")
        self.headers.append((name, value))
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        if self._resumes:
            self._resumes = False
            return
        version = self.parser.get_http_version()
        self._refusal = self._head_fault(version)
        if self._refusal is not None:
            raise ValueError("the head is refused")
        if version == "1.0":
            self.expect_100_continue = False  # RFC 9110, section 10.1.1
        super().on_headers_complete()
        self.scope[LOSSES] = self._losses  # type: ignore[literal-required]
        self.cycle.transport = self._ending  # type: ignore[assignment]
        self._overhead, self._is_in_body = 0, True

    def on_body(self, body: bytes) -> None:
        self._overhead = max(0, self._overhead - len(body) * (1 + _BYTES_PER_BODY_BYTE))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the body follows (_resume)
        self._overhead, self._is_in_body = 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._ending.flush()  # an answer to HEAD has no body with which its head would go out
        is_last = not self.pipeline
        super().on_response_complete()
        if not is_last or self.transport.is_closing():
            return
        if self._refusal is not None:
            self._send_refusal()
        elif self._is_in_body and self.expect_100_continue:
            self._end()  # the caller may never send the body, and its next request must not be read as the body

    def _head_fault(self, version: str) -> AnsweredError | None:
        """Return why the head must be refused; None if it is served."""
        if len(self.headers) > _HEADERS_MAX or (self._read_bytes > _HEAD_BYTES_MAX and self._is_too_large()):
            return _TOO_LARGE
        names = dict(self.headers)
        if version not in ("1.0", "1.1"):
            return _invalid(f"the version {version} is not supported")
        if version == "1.1" and b"host" not in names:
            return _invalid("the header `Host` is missing")
        if _ENCODING in names:
            encodings = [value.lower() for name, value in self.headers if name == _ENCODING]
            if version == "1.0" or encodings != [b"chunked"]:
                return _invalid("`Transfer-Encoding` is `chunked` once, in HTTP/1.1, or is missing")
        if b"#" in self.url or self.parser.get_method() == b"CONNECT":
            return _invalid("a path without a fragment is expected")
        if len(self.pipeline) >= _PIPELINED_MAX:
            return _invalid(f"more than {_PIPELINED_MAX} requests wait for the answer to an earlier one")
        return None

    def _is_too_large(self) -> bool:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _HEAD_BYTES_MAX

    def _refuse(self, error: AnsweredError) -> None:
        """Refuse what arrived last, after the answers to the requests before it."""
        self._refusal, self._is_ended = error, True
        if self._is_in_body and self.pipeline:
            self.pipeline.popleft()  # the request with the invalid body has not begun
        elif self._is_in_body:
            if self.cycle.response_complete:
                return self._end()
            if self.cycle.response_started:
                return self.transport.close()
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._send_refusal()
        elif self.cycle is None or self.cycle.response_complete:
            self._send_refusal()
        return None

    def _send_refusal(self) -> None:
        """Answer in OpenAI's shape and with an id."""
        assert self._refusal is not None  # noqa: S101 - set by _refuse
        status, body = self._refusal.status, json.dumps(self._refusal.body()).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n{ID_HEADER}: {RealIds().new()}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._end()

    def end_answers(self) -> None:
        """End the connection after an answer that is its last one."""
        self.pipeline.clear()
        self._refusal = None
        if self._is_in_body:
            self._end()
        else:
            self.transport.close()

    def _end(self) -> None:
        """Send no more, and ignore what arrives until the caller closes the connection; for at most `idle_s`."""
        self._is_ended = True
        self.transport.write_eof()
        self.cycle = self._last_request = None  # type: ignore[assignment]
        self._was_answered = True
        self._head_timer.cancel()
        self._head_timer = asyncio.get_running_loop().call_later(self.idle_s, self._check_head)

    def _check_head(self) -> None:
        """Close the connection if at the last check the same request was answered already, or there was none.

        So a connection stays open for `idle_s` after an answer, however long that took: a caller that sends its next
        request on it at once must not find it closed.

        A closing connection is dropped if its caller takes nothing of the rest: the kernel would wait for ever.
        """
        self._head_timer = asyncio.get_running_loop().call_later(self.idle_s, self._check_head)
        request = self.cycle
        is_answered = request is None or request.response_complete
        if self.transport.is_closing():
            unsent = self.transport.get_write_buffer_size()
            self._stalled = self._stalled + 1 if unsent == self._unsent else 0
            self._unsent = unsent
            if self._stalled >= _STALLED_CHECKS_MAX:
                self.transport.abort()
        elif is_answered and self._was_answered and request is self._last_request:
            self.transport.close()
        self._last_request, self._was_answered = request, is_answered


class _Ending:
    """The transport as the answer to one request uses it. At its close, the caller gets the whole answer.

    The head of an answer goes out with its first bytes, in one system call: uvicorn writes them one after the other. A
    head without a body yet waits for the end of the loop's turn.
    """

    def __init__(self, protocol: BoundedHeads) -> None:
        self._transport = protocol.transport
        self.is_closing = protocol.transport.is_closing
        self.end = protocol.end_answers
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self.end()

    def flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


_ENCODING = b"transfer-encoding"
_TOO_LARGE = AnsweredError(
    f"The head of the request, or what surrounds its body, is larger than {_HEAD_BYTES_MAX} bytes, or it has more than "
    f"{_HEADERS_MAX} headers.",
    "head_too_large", None, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error",
)  # fmt: skip


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The request is not valid HTTP/1.1: {reason}.", code="invalid_http")
