"""A process's log lines, which never wait for their reader.

A pipe that is not read is full after some lines, and the next line would stop the event loop: a front with all its
requests, a leader with its shard, a worker with its leases. So a thread writes the lines, from a queue with a bound.
What does not fit, or cannot be written, is dropped and counted. If many lines come together, those that fit are kept.
One line says so when the queue is empty again; while lines wait, one each _REPORT_S.

A front in Lambda writes directly: Lambda freezes it after its last byte, and the thread with it.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
import threading
import time
from collections import deque
from types import TracebackType

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

    def fileno(self) -> int:
        return self._descriptor

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


class LogStreams:
    """Within its block all that this process prints takes this way. Begin it before any logger is made."""

    def __enter__(self) -> LogStreams:
        self._direct = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._lines = LogLines(sys.stdout.fileno()), LogLines(sys.stderr.fileno())
        return self

    def finish(self) -> None:
        """Write the last lines. What is printed later, such as the traceback of an error, is written directly."""
        sys.stdout, sys.stderr = self._direct
        for lines in self._lines:
            lines.finish()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
