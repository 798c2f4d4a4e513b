"""Jobs for other processes, which import them by name from this module."""

from __future__ import annotations

import gc
import os
import signal
import struct
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path


def squared(number: int) -> int:
    return number * number


def after_its_gate(job: tuple[str, str]) -> str:
    """Read one file, which blocks until it is written, and write the other."""
    waits_for, lets_go = job
    if waits_for:
        Path(waits_for).read_bytes()
    if lets_go:
        Path(lets_go).write_bytes(b"go")
    return waits_for


def fails_at_two(number: int) -> int:
    if number == 2:
        raise KeyError("two")
    return number


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def fails_oddly(number: int) -> int:
    raise Unpicklable("odd", str(number))


def dies(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def dies_while_sending(number: int) -> int:
    """Send the beginning of a result of a million bytes, and die."""
    mine = next(one for one in gc.get_objects() if isinstance(one, Connection) and one.readable and one.writable)
    os.write(mine.fileno(), struct.pack("!i", 1_000_000) + b"the beginning")
    return dies(number)


def process_id(number: int) -> int:
    return os.getpid()


def reports_and_stays(fifo: str) -> None:
    """Write the process id to a pipe that stays open until the process is gone."""
    pipe = os.open(fifo, os.O_WRONLY)
    os.write(pipe, f"{os.getpid()}\n".encode())
    threading.Event().wait()


def heeds_interrupts() -> None:
    """Make Ctrl-C work in a new process: a shell that runs the tests in the background makes them ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Start two jobs that stay, in a process that a test may interrupt."""
    from headgate.simulator.parallel import Processes

    with Processes(2) as pool:
        pool.map(reports_and_stays, [sys.argv[1]] * 2)


if __name__ == "__main__":
    main()
