"""Standard output and standard error of a command, wherever they lead: to a pipe that is closed, or to a full disk.

Results go to standard output. If one cannot be written, the command ends (OutputLost, exits.py). Messages go to
standard error. If one cannot be written, it is dropped, because no other place is left for it, and the command goes on:
a server must not end because the terminal of its messages is gone.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

STANDARD = (0, 1, 2)
"""Descriptors of standard input, output and error."""


class OutputLost(Exception):
    """Standard output cannot be written. `is_closed`: its reader has closed it, as `head` does when it has enough."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed = error.errno == errno.EPIPE


class _Results(io.FileIO):
    """Standard output. Every failure is OutputLost, which no code takes for an error of a file or a connection."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return _write(super().write, self.fileno(), data)
        except OSError as error:
            raise OutputLost(error) from None


class _Messages(io.FileIO):
    """Standard error. What cannot be written is dropped."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return _write(super().write, self.fileno(), data)
        except OSError:
            return len(data)


def guard_output() -> None:
    """Replace standard output and standard error of this process by guarded ones. Characters that their encoding lacks
    are written as escapes, such as \\u2026."""
    closed = _occupy_closed()
    sys.stdout = _text(_Results(1, "wb", closefd=False), sys.stdout, 1 in closed)
    sys.stderr = _text(_Messages(2, "wb", closefd=False), sys.stderr, 2 in closed)


def drop_output() -> None:
    """Let everything vanish that is still buffered for standard output or is written to it from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _text(raw: io.RawIOBase, stream: TextIO | None, closed: bool) -> TextIO:
    is_unbuffered = os.environ.get("PYTHONUNBUFFERED", "") != ""
    lines = stream is not None and not closed and (raw.fileno() == STANDARD[2] or raw.isatty())
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace",
        newline="\n",
        line_buffering=lines,
        write_through=is_unbuffered,
    )


def _occupy_closed() -> set[int]:
    """Open the standard descriptors that are closed, for reading only, and return them. Otherwise the next file or
    connection that is opened would get such a number, and everything that is printed."""
    closed = set[int]()
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) in STANDARD:
        os.set_inheritable(descriptor, True)
        closed.add(descriptor)
    os.close(descriptor)
    return closed


def _write(write: Callable[[bytes], int | None], descriptor: int, data: bytes) -> int:
    """Write some of the data, and wait while a descriptor that does not block is full."""
    while (written := write(data)) is None:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLOUT)
        waiting.poll()
    return written
