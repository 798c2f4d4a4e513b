"""Log lines of a front that never wait for their reader.

Every request writes lines to standard output. A pipe that is not read is full after some seconds, and the
next line would stop the event loop, and with it all requests. So a thread writes the lines, from a queue with a bound.
What does not fit, or cannot be written, is dropped and counted. One line says so when the queue is empty again; while
lines wait, one each REPORT_S.

A front in Lambda writes directly: Lambda freezes it after its last byte, and the thread with it.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections import deque

QUEUE_BYTES_MAX = 8_000_000
"""About 10,000 lines."""
REPORT_S = 60.0
CLOSING_S = 2.0
"""How long the end of the process waits for its last lines."""


class LogLines(io.TextIOBase):
    """A text stream to a descriptor. `dropped`: the lines that were not written, since the start."""

    encoding = "utf-8"

    def __init__(self, descriptor: int, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.dropped = 0
        self._descriptor, self._bytes_max = descriptor, bytes_max
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._bytes, self._partial, self._ends = 0, "", False
        self._reported, self._reported_s = 0, time.monotonic()
        """The dropped lines that were reported, and when the last report was written."""
        self._thread = threading.Thread(target=self._write_lines, name=f"headgate-log-{descriptor}", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> int:
        """Put whole lines into the queue, and keep the rest for the next call. Returns at once."""
        with self._changed:
            *lines, self._partial = (self._partial + text).split("\n")
            for line in lines:
                self._put(f"{line}\n".encode("utf-8", "backslashreplace"))
            self._changed.notify()
        return len(text)

    def writable(self) -> bool:
        return True

    def finish(self, within_s: float = CLOSING_S) -> None:
        """Wait until all lines are written, at most so long. Further lines are dropped."""
        with self._changed:
            if self._partial:
                self._put(self._partial.encode("utf-8", "backslashreplace"))
                self._partial = ""
            self._ends = True
            self._changed.notify()
        self._thread.join(within_s)

    def _put(self, line: bytes) -> None:
        if self._ends or self._bytes + len(line) > self._bytes_max:
            self.dropped += 1
            return
        self._queue.append(line)
        self._bytes += len(line)

    def _write_lines(self) -> None:
        while (line := self._next()) is not None:
            is_written = self._write(line)
            with self._changed:
                self._bytes -= len(line)
                self.dropped += not is_written
                is_time = not self._queue or time.monotonic() - self._reported_s > REPORT_S
                lost = self.dropped - self._reported if is_written and is_time else 0
            if lost and self._write(_drop_line(lost)):
                self._reported, self._reported_s = self._reported + lost, time.monotonic()

    def _next(self) -> bytes | None:
        """Wait for a line. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ends)
            return self._queue.popleft() if self._queue else None

    def _write(self, line: bytes) -> bool:
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            return False
        return True


def _drop_line(lost: int) -> bytes:
    message = f"{lost} log lines were dropped: the log could not be written, or its reader was too slow"
    return json.dumps({"level": "WARNING", "message": message, "service": "headgate"}).encode() + b"\n"


def take_standard_streams() -> list[LogLines]:
    """Let all that this process prints from now on take this way. Call it before any logger is made."""
    streams = [LogLines(stream.fileno()) for stream in (sys.stdout, sys.stderr)]
    sys.stdout, sys.stderr = streams
    return streams
