"""Standard output and standard error of a command, wherever they lead, and the exit code with which it ends.

Output may lead to a pipe that is closed, or to a full disk. Results go to standard output. If one cannot be written,
the command ends (OutputLost). Messages go to standard error, one line for a mistake, and a progress bar if it is a
terminal. If one cannot be written, it is dropped, because no other place is left for it, and the command goes on: a
server must not end because the terminal of its messages is gone.
"""

from __future__ import annotations

import errno
import io
import json as json_module
import logging
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dispatcher.model.errors import AnsweredError, ConfigurationError

_STANDARD = (0, 1, 2)
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


def _drop_output() -> None:
    """Let everything vanish that is still buffered for standard output or is written to it from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _text(raw: io.RawIOBase, stream: TextIO | None, closed: bool) -> TextIO:
    is_unbuffered = os.environ.get("PYTHONUNBUFFERED", "") != ""
    lines = stream is not None and not closed and (raw.fileno() == _STANDARD[2] or raw.isatty())
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
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) in _STANDARD:
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


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""The reader of standard output, such as `head`, has closed it."""
_EXTRAS = {
    "openai": "client",
    "moto": "local",
    "awslambdaric": "local",
    "psutil": "serve",
    "torch": "transformers",
    "transformers": "transformers",
    "matplotlib": "plots",
}
"""The extra that installs each optional package."""
_USAGE_ERROR = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base class of Typer's errors about arguments; it has no public name."""


def exit_code(run: Callable[[], object]) -> int:
    """Run a command and return its exit code.

    Bad input prints one line on standard error and gives 2, and so does output that cannot be written. For a defect of
    headgate the traceback is shown.
    """
    for name in ("dispatcher", "headgate.store"):  # the error line below is the only message
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        code = _exit_code(run)
        sys.stdout.flush()
    except OutputLost as lost:
        _drop_output()
        return PIPE_CLOSED if lost.is_closed else _bad_input(str(lost))
    return code


def _exit_code(run: Callable[[], object]) -> int:
    try:
        code = run()
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (ConfigurationError, AnsweredError) as error:
        return _bad_input(str(error))
    except ImportError as error:
        if "socksio" in str(error):  # raised by httpx, whatever the client is for
            return _bad_input("a proxy of the environment (ALL_PROXY) is a SOCKS proxy: pip install 'httpx[socks]'")
        if error.name not in _EXTRAS:
            raise
        return _bad_input(f"this needs the package {error.name}: pip install 'headgate[{_EXTRAS[error.name]}]'")
    except OSError as error:
        if error.filename is None:  # not about a file that the user named
            raise
        return _bad_input(f"{error.filename}: {error.strerror}")
    except Exception as error:
        if not isinstance(error, _USAGE_ERROR):
            raise
        return _bad_input(error.format_message())  # type: ignore[attr-defined]
    return code if isinstance(code, int) else 0


def _bad_input(message: str) -> int:
    if message:  # empty if the help was printed
        sys.stderr.write(f"headgate: {' '.join(message.split())}\n")
    return _BAD_INPUT


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs. Call the yielded function with the number done and the total."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def shown_as(shown: dict[str, Any], json: bool, text: str) -> None:
    """Print the object with --json, otherwise the text."""
    sys.stdout.write((json_module.dumps(shown) if json else text) + "\n")
