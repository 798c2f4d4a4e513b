"""Ends what a dead stack left behind: `python -m headgate.local.guardian MARK GRACE_S`, its standard input a pipe.

The stack holds the pipe's other end. When it closes, because the stack ended or was killed with -9, every process whose
environment carries the mark is ended: SIGTERM, then SIGKILL after the grace. Grandchildren inherit the mark, so nothing
has to be registered and nothing can be missed between a spawn and its registration. Works on Linux and macOS.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import psutil

MARK_VARIABLE = "HEADGATE_LOCAL_STACK"
SWEEPS_MAX = 20
FORK_TO_EXEC_S = 0.1
"""A child just forked shows its parent's environment until it has called exec: look again after this time."""


def marked(mark: str) -> list[psutil.Process]:
    """Living processes of this user whose environment carries the mark. Zombies are left out: they hold nothing."""
    return [process for process in psutil.process_iter() if _carries(process, mark)]


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK_VARIABLE) == mark
    except (psutil.Error, OSError):
        return False  # gone meanwhile, or another user's


def end_marked(mark: str, grace_s: float) -> int:
    """Ends them all and says how many they were. Bounded: a process that spawns faster than it dies is given up on."""
    ended = 0
    for _ in range(SWEEPS_MAX):
        found = marked(mark)
        if not found:
            break
        ended += len(found)
        _signal(found, kill=False)
        _, stubborn = psutil.wait_procs(found, timeout=grace_s)
        _signal(stubborn, kill=True)
        psutil.wait_procs(stubborn, timeout=FORK_TO_EXEC_S)
    return ended


def _signal(processes: Sequence[psutil.Process], *, kill: bool) -> None:
    for process in processes:
        try:
            process.kill() if kill else process.terminate()
        except psutil.Error:
            continue


def main() -> None:
    mark, grace_s = sys.argv[1], float(sys.argv[2])
    while os.read(sys.stdin.fileno(), 4096):
        pass
    end_marked(mark, grace_s)
    time.sleep(FORK_TO_EXEC_S)
    end_marked(mark, grace_s)


if __name__ == "__main__":
    main()
