"""An HTTP front as a process: `python -m functions.http_api.server --host H --port P`. uvicorn serves the app.

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
from math import ceil

import uvicorn

from functions.http_api.protocol import IDLE_S, BoundedHeads

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
