"""Ends the processes that a dead stack left: `python -m headgate.machine.guardian MARK GRACE_S [FOLDER]`.

Its standard input is a pipe. The stack holds the other end, so the pipe closes when the stack ends, even by kill -9.
Then the guardian ends every process that has the mark in its environment: SIGTERM, after the grace SIGKILL.
Grandchildren inherit the mark, so no process has to be registered, and none is missed between its start and its
registration. Works on Linux and macOS.

FOLDER is the stack's temporary folder. A stack that ends in order writes ORDERLY into the pipe and removes the folder
itself. Otherwise the guardian removes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

import psutil

MARK_VARIABLE = "HEADGATE_LOCAL_STACK"
ORDERLY = b"."
_SWEEPS_MAX = 20
_FORK_TO_EXEC_S = 0.1
"""Between fork and exec a child shows its parent's environment: sweep again after this time."""


def marked(mark: str) -> list[psutil.Process]:
    """Return this user's processes with the mark in their environment, without zombies, which hold no resources."""
    return [process for process in psutil.process_iter() if _carries(process, mark)]


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK_VARIABLE) == mark
    except (psutil.Error, OSError):
        return False  # ended meanwhile, or of another user


def end_marked(mark: str, grace_s: float) -> int:
    """End the marked processes and return their number. _SWEEPS_MAX bounds it if they start faster than they end."""
    ended = 0
    for _ in range(_SWEEPS_MAX):
        found = marked(mark)
        if not found:
            break
        ended += len(found)
        _signal(found, kill=False)
        _, stubborn = psutil.wait_procs(found, timeout=grace_s)
        _signal(stubborn, kill=True)
        psutil.wait_procs(stubborn, timeout=_FORK_TO_EXEC_S)
    return ended


def _signal(processes: Sequence[psutil.Process], *, kill: bool) -> None:
    for process in processes:
        try:
            process.kill() if kill else process.terminate()
        except psutil.Error:
            continue


def main() -> None:
    mark, grace_s, folders = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    is_orderly = False
    while os.read(sys.stdin.fileno(), 4096):
        is_orderly = True
    end_marked(mark, grace_s)
    time.sleep(_FORK_TO_EXEC_S)
    end_marked(mark, grace_s)
    for folder in folders if not is_orderly else []:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
