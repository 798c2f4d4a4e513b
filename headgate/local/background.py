"""A stack in the background: `headgate local --detach` starts it, `headgate local stop` ends it.

The stack is a process of its own, in a session of its own, that runs `headgate local` with the same options. Its folder
has these files, readable by their owner only:

local.json    the process id, the stack's addresses and keys: exists while the stack runs
local.log     the messages of the stack
logs/         the logs of its processes

A process id may be used again after the process ended. So the process has a random mark in its environment, and the
file has the same mark.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from dispatcher.model.errors import ConfigurationError
from headgate.machine.options import Addresses

STATE, LOG, _LOGS = "local.json", "local.log", "logs"
_MARK_VARIABLE = "HEADGATE_BACKGROUND_STACK"
_STOP_S = 30.0
"""The stack ends its processes in a few seconds. After this time it is killed; its guardian ends its processes."""


class BackgroundStack(BaseModel):
    """The content of local.json."""

    model_config = ConfigDict(frozen=True)

    pid: int
    mark: str
    addresses: Addresses

    def process(self) -> psutil.Process | None:
        """Return the stack's process; None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            is_alive = process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK_VARIABLE) == self.mark
        except (psutil.Error, OSError):
            return None
        return process if is_alive else None


def default_folder() -> Path:
    """Return the folder of this user's stack in the background."""
    state_home = os.environ.get("XDG_STATE_HOME")
    return (Path(state_home) if state_home else Path.home() / ".local" / "state") / "headgate" / "local"


def stop_command(folder: Path) -> str:
    """Return the command that ends the stack with this folder."""
    return "headgate local stop" + ("" if folder == default_folder() else f" --home {folder}")


def running_stack(folder: Path) -> BackgroundStack | None:
    """Return the stack that runs in the background with this folder, if there is one."""
    try:
        found = BackgroundStack.model_validate_json((folder / STATE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return found if found.process() is not None else None


def detach(folder: Path, arguments: Sequence[str], on_start: Callable[[], None]) -> BackgroundStack:
    """Start `headgate local --json --home FOLDER ARGUMENTS` in the background and wait until it is ready.

    `on_start` is called before the start, unless a stack runs already.

    Raises ConfigurationError if a stack runs already, or if this one does not start. If this process is interrupted
    while it waits, the stack is ended.
    """
    if (found := running_stack(folder)) is not None:
        raise ConfigurationError(
            f"a stack runs in the background already (process {found.pid}): end it with `{stop_command(folder)}`, "
            "or give another --home and --port"
        )
    on_start()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(folder / _LOGS, ignore_errors=True)
    mark = secrets.token_hex(16)
    with _private(folder / LOG) as log:
        stack = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "headgate.cli", "local", "--json", "--home", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, _MARK_VARIABLE: mark},
            start_new_session=True,
        )
    try:
        return _ready(stack, mark, folder)
    except BaseException:
        stack.terminate()
        stack.wait()
        raise


def stop(folder: Path) -> BackgroundStack:
    """End the stack and return what it was. Raises ConfigurationError if none runs."""
    found = running_stack(folder)
    process = None if found is None else found.process()
    (folder / STATE).unlink(missing_ok=True)
    if found is None or process is None:
        raise ConfigurationError(
            f"no stack runs in the background with {folder}: `headgate local --detach` starts one. "
            "Ctrl-C ends a stack in the foreground"
        )
    process.terminate()
    try:
        process.wait(_STOP_S)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait()
    return found


def _ready(stack: subprocess.Popen[bytes], mark: str, folder: Path) -> BackgroundStack:
    """Wait for the stack's line with its addresses, and keep it in local.json."""
    assert stack.stdout is not None  # noqa: S101 - a pipe
    with stack.stdout as output:
        line = output.readline()
    if not line:
        stack.wait()
        messages = (folder / LOG).read_text(errors="replace").splitlines()
        reason = messages[-1].removeprefix("headgate: ") if messages else f"exit status {stack.returncode}"
        raise ConfigurationError(f"{reason}; the log is {folder / LOG}")
    started = BackgroundStack(pid=stack.pid, mark=mark, addresses=Addresses.model_validate_json(line))
    with _private(folder / STATE) as state:
        os.write(state, started.model_dump_json().encode())
    return started


@contextmanager
def _private(path: Path) -> Iterator[int]:
    """Make a new file that only its owner can read, and yield its descriptor for writing."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
