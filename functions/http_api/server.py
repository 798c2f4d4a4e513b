"""An HTTP front as a process: `python -m functions.http_api.server --host H --port P`. uvicorn serves the app.

uvicorn waits for ever for the head of a request. Connections that send none would use up the process's file
descriptors, and no tenant could connect any more. They are closed here after `--idle-s`. What follows the head is
bounded in functions/http_api/connections.py.

A load balancer keeps idle connections open, and sends its next request on one of them. If the front closed it at that
moment, the caller would get a 502. So behind a load balancer `--idle-s` must be above the load balancer's idle timeout.

Every request leaves lines on standard output, and a log line never waits for its reader. A pipe that is not read is
full after some seconds, and the next line would stop the event loop, and with it all requests. So a thread writes the
lines, from a queue with a bound. What does not fit, or cannot be written, is dropped and counted. If many lines come
together, those that fit are kept. One line says so when the queue is empty again; while lines wait, one each _REPORT_S.

A front in Lambda writes directly: Lambda freezes it after its last byte, and the thread with it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections import deque
from http import HTTPStatus
from math import ceil

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dispatcher.model.errors import AnsweredError, InvalidRequest
from dispatcher.processes.bootstrap import RealIds
from functions.http_api.connections import LOSSES, Losses
from functions.http_api.refusals import ID_HEADER

_QUEUE_BYTES_MAX = 8_000_000
"""About 10,000 lines."""
_REPORT_S = 60.0
_CLOSING_S = 2.0
"""How long the end of the process waits for its last lines."""
_WRITE_BYTES_MAX = select.PIPE_BUF
"""Lines are written together up to this size: a pipe takes so many bytes whole, also while other processes write."""


class LogLines(io.TextIOBase):
    """A text stream to a descriptor. `dropped`: the lines that were not written, since the start."""

    encoding = "utf-8"

    def __init__(self, descriptor: int, bytes_max: int = _QUEUE_BYTES_MAX) -> None:
        self.dropped = 0
        self._descriptor, self._bytes_max = descriptor, bytes_max
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._bytes, self._partial, self._ends = 0, "", False
        self._is_torn = False
        """Whether the last write failed within a line, so that a line's end comes before the next one."""
        self._reported, self._reported_s = 0, time.monotonic()
        """The dropped lines that were reported, and when the last report was written."""
        self._thread = threading.Thread(target=self._write_lines, name=f"headgate-log-{descriptor}", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> int:
        """Put whole lines into the queue, and keep the rest for the next call. Returns at once."""
        with self._changed:
            *lines, self._partial = (self._partial + text).split("\n")
            for line in lines:
                self._put(line)
            self._changed.notify()
        return len(text)

    def writable(self) -> bool:
        return True

    def finish(self, within_s: float = _CLOSING_S) -> None:
        """Wait until all lines are written, at most so long. Further lines are dropped."""
        with self._changed:
            if self._partial:
                self._put(self._partial)
                self._partial = ""
            self._ends = True
            self._changed.notify()
        self._thread.join(within_s)

    def _put(self, text: str) -> None:
        line = f"{text}\n".encode("utf-8", "backslashreplace")
        if self._ends or self._bytes + len(line) > self._bytes_max:
            self.dropped += 1
            return
        self._queue.append(line)
        self._bytes += len(line)

    def _write_lines(self) -> None:
        while lines := self._next():
            unwritten = len(lines) - self._write(b"".join(lines))
            with self._changed:
                self._bytes -= sum(len(line) for line in lines)
                self.dropped += unwritten
                is_time = not self._queue or time.monotonic() - self._reported_s > _REPORT_S
                lost = self.dropped - self._reported if is_time and not unwritten else 0
            if lost and self._write(_drop_line(lost)):
                self._reported, self._reported_s = self._reported + lost, time.monotonic()

    def _next(self) -> list[bytes]:
        """Wait for lines, and take those of one write. Return no line at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ends)
            lines: list[bytes] = []
            size = 0
            while self._queue and (not lines or size + len(self._queue[0]) <= _WRITE_BYTES_MAX):
                lines.append(self._queue.popleft())
                size += len(lines[-1])
            return lines

    def _write(self, lines: bytes) -> int:
        """Return how many lines are written whole."""
        rest = b"\n" + lines if self._is_torn else lines
        try:
            while rest:
                count = os.write(self._descriptor, rest)
                self._is_torn = rest[count - 1 : count] != b"\n"
                rest = rest[count:]
        except OSError:
            return lines.count(b"\n") - rest.count(b"\n") if len(rest) <= len(lines) else 0
        return lines.count(b"\n")


def _drop_line(lost: int) -> bytes:
    message = f"{lost} log lines were dropped: the log could not be written, or its reader was too slow"
    return json.dumps({"level": "WARNING", "message": message, "service": "headgate"}).encode() + b"\n"


def _take_standard_streams() -> list[LogLines]:
    """Let all that this process prints from now on take this way. Call it before any logger is made."""
    streams = [LogLines(stream.fileno()) for stream in (sys.stdout, sys.stderr)]
    sys.stdout, sys.stderr = streams
    return streams


IDLE_S = 10.0
_HEAD_BYTES_MAX = 65_536
_HEADERS_MAX = 256
_PIPELINED_MAX = 100
"""How many requests of a connection may wait while an earlier one is answered."""
_STALLED_CHECKS_MAX = 3
"""A closing connection whose caller reads nothing is dropped after so many times `idle_s`."""
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
        self._head_timer.cancel()
        self._head_timer = asyncio.get_running_loop().call_later(self.idle_s, self._check_head)

    def _check_head(self) -> None:
        """Close the connection if no request is being answered and none began since the last check.

        A closing connection whose caller takes nothing of the rest is dropped: the kernel would wait for ever.
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
        elif is_answered and request is self._last_request:
            self.transport.close()
        self._last_request = request


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
            asyncio.get_running_loop().call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self.end()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


_ENCODING = b"transfer-encoding"
_TOO_LARGE = AnsweredError(
    f"The head of the request, or what surrounds its body, is larger than {_HEAD_BYTES_MAX} bytes, or it has more than "
    f"{_HEADERS_MAX} headers.",
    "head_too_large", None, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error",
)  # fmt: skip


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The request is not valid HTTP/1.1: {reason}.", code="invalid_http")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m functions.http_api.server", description="An HTTP front.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="close a connection that is idle for so long")
    arguments = parser.parse_args()
    BoundedHeads.idle_s = arguments.idle_s
    _raise_open_files()
    streams = [] if os.environ.get("HEADGATE_FRONT") == "lambda" else _take_standard_streams()

    def end(number: int, _: object) -> None:
        """Write the last log lines, and end by the signal, which uvicorn raises again after its shutdown."""
        for stream in streams:
            stream.finish()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        uvicorn.run(
            "functions.http_api.app:app",
            host=arguments.host,
            port=arguments.port,
            http=BoundedHeads,
            ws="none",
            timeout_keep_alive=ceil(arguments.idle_s),
            access_log=False,
            log_level="warning",
        )
    finally:
        for stream in streams:
            stream.finish()


def _raise_open_files() -> None:
    """Allow as many open files as the system lets this process have: often only 1,024 are allowed at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
