"""Child processes that end with the stack: after Ctrl-C, after SIGTERM, and after a kill -9 of the stack.

Each child runs in a session of its own, so a Ctrl-C reaches the stack alone, which then stops its children in order.
Each child carries the stack's mark in its environment. A guardian process waits on a pipe until the stack ends in any
way, and then ends every process that still carries the mark (guardian.py).

A child's output goes to its log. Two things are read from it: the JSON object with which the child announces itself,
and the sentence with which it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Any

from headgate.machine.guardian import MARK_VARIABLE, ORDERLY, end_marked, marked
from headgate.machine.options import LOG_BYTES_MAX

_ANNOUNCEMENT_BYTES_MAX = 65536
_LOG_TAIL_CHARS = 2000
LOG_CHECKED_EVERY_S = 10.0
_REASON_CHARS_MAX = 300
_SERIOUS = ("WARNING", "ERROR", "CRITICAL")


class ChildDied(Exception):
    """A child ended before it was ready. The message has the reason that its log gives."""


class Child:
    """One child process. Its standard output and standard error go to `log_path`, from `log_start` on: the log also has
    those of earlier children."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path, log_start: int) -> None:
        self.name = name
        self.log_path = log_path
        self._log_start = log_start
        self._process = process
        self._stopping = False
        self._announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._announced.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status: None while the child runs, the negative number of the signal that ended it."""
        return self._process.returncode

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def announcement(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the first JSON object that the child prints on a line. Raises ChildDied, and TimeoutError with what
        the child says itself."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._announced)
        except TimeoutError:
            raise TimeoutError(self.lateness(timeout_s)) from None

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the child and its process group. `on_death` is not called for it."""
        self._stopping = True
        if self.returncode is None:
            self._kill_group()

    async def stop(self, grace_s: float) -> int:
        """Send SIGTERM, after `grace_s` SIGKILL to the process group. Return the exit status. Repeatable."""
        self._stopping = True
        if self.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def log_tail(self) -> str:
        """Return the end of this child's output."""
        output = self.log_path.read_bytes()[self._log_start :]
        return output.decode(errors="replace")[-_LOG_TAIL_CHARS:]

    def ending(self) -> str:
        """Return a line that says how the child ended and where its log is.

        If it ended by itself with an error, the line contains the last line of its output, which has the reason.
        """
        reason = self.reason() if (self.returncode or 0) > 0 else ""
        suffix = f" ({reason})" if reason else ""
        return f"{self.name} ended with status {self.returncode}{suffix}; its log is {self.log_path}"

    def reason(self) -> str:
        """Return the last sentence of this child's output; empty if there is none."""
        return last_sentence(self.log_tail())

    def early_end(self) -> ChildDied:
        """Return the error of a child that ended before it was ready: one line with the reason."""
        reason = self.reason() or f"its log is {self.log_path}"
        return ChildDied(f"{self.name} ended with status {self.returncode} before it was ready: {reason}")

    def lateness(self, timeout_s: float) -> str:
        """Return a line for a child that was not ready in time: what it says itself, if it says anything."""
        reason = self.reason()
        suffix = f": {reason}" if reason else f"; its log is {self.log_path}"
        return f"{self.name} was not ready after {timeout_s:g} s (--start-timeout gives it more time){suffix}"

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # the group is empty (macOS gives EPERM if only zombies are left)

    async def _copy_output(self, output: asyncio.StreamReader, log: RawIOBase) -> None:
        line = b""
        while chunk := await output.read(65536):
            with suppress(OSError):  # a full disk costs lines of the log; a pipe that is not read stops the child
                log.write(chunk)
            if not self._announced.done():
                *lines, line = (line + chunk).split(b"\n")
                line = line[:_ANNOUNCEMENT_BYTES_MAX]
                self._read_announcement(lines)

    async def _bound_log(self) -> None:
        """Copy a log that is too long, and empty it: the child itself writes its standard error to the open file."""
        while True:
            await asyncio.sleep(LOG_CHECKED_EVERY_S)
            with suppress(OSError):  # no space for the copy: tried again
                if self.log_path.stat().st_size > LOG_BYTES_MAX:
                    await asyncio.to_thread(shutil.copyfile, self.log_path, self.log_path.with_suffix(".log.1"))
                    os.truncate(self.log_path, 0)
                    self._log_start = 0

    async def _watch(self, output: asyncio.StreamReader, log: RawIOBase) -> None:
        """Wait until the child ended and its output is in the log."""
        copying, bounding = asyncio.create_task(self._copy_output(output, log)), asyncio.create_task(self._bound_log())
        await self._process.wait()
        bounding.cancel()
        # Ends grandchildren. At once: later the number may belong to another process.
        self._kill_group()
        # A grandchild in another group may hold the pipe open; the child's own output is read within this second.
        await asyncio.wait({copying}, timeout=1.0)
        copying.cancel()
        await asyncio.gather(copying, bounding, return_exceptions=True)
        if not self._announced.done():
            self._announced.set_exception(self.early_end())

    def _read_announcement(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            announcement = _json_object(line)
            if announcement is not None:
                self._announced.set_result(announcement)
                return


class Children:
    """All children of one stack.

    `mark`: a new unique id, by which the guardian finds the processes. `on_death(child)`: called when a vital child
    ends that was not stopped. `grace_s`: seconds between SIGTERM and SIGKILL. `temporary`: a folder that the guardian
    removes if this process is killed.
    """

    def __init__(
        self,
        mark: str,
        log_directory: Path,
        *,
        on_death: Callable[[Child], None] | None = None,
        grace_s: float = 5.0,
        temporary: Path | None = None,
    ) -> None:
        self.mark = mark
        self._log_directory = log_directory
        self._on_death = on_death
        self._grace_s = grace_s
        self._temporary = temporary
        self._children: list[Child] = []
        self._watching: set[asyncio.Task[None]] = set()
        self._guardian: subprocess.Popen[bytes] | None = None

    async def spawn(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        vital: bool = True,
    ) -> Child:
        """Start a child with this environment and the stack's mark. Its output is appended to the log `<name>.log`.

        `on_death` is called for a `vital` child only.
        """
        self._start_guardian()
        log_path = self._log_directory / f"{name}.log"
        # Not asyncio's pipe: with it, `wait` also waits for every other process that holds the pipe's other end.
        reading, writing = os.pipe()
        try:
            with log_path.open("ab") as log:
                log_start = log.tell()  # before the child starts: it may write, and end, before this process goes on
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=log,
                    env={**environment, MARK_VARIABLE: self.mark},
                    cwd=cwd,
                    start_new_session=True,
                )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child = Child(name, process, log_path, log_start)
        self._children.append(child)
        task = asyncio.create_task(self._watch(child, reading, vital))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return child

    async def spawn_python(self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str]) -> Child:
        """Start a child with this process's Python."""
        return await self.spawn(name, [sys.executable, *arguments], environment=environment)

    def survivors(self) -> list[int]:
        """Return the ids of processes that carry the mark; none after `stop`."""
        return [process.pid for process in marked(self.mark)]

    async def stop(self) -> None:
        """End all children at the same time, then processes that they left, then the guardian. Repeatable."""
        await asyncio.gather(*(child.stop(self._grace_s) for child in self._children))
        await asyncio.gather(*self._watching)
        await asyncio.to_thread(end_marked, self.mark, self._grace_s)
        if self._guardian is not None:
            await asyncio.to_thread(self._guardian.communicate, ORDERLY)
            self._guardian = None

    def _start_guardian(self) -> None:
        """Start the guardian, before the first child."""
        if self._guardian is not None:
            return
        self._log_directory.mkdir(parents=True, exist_ok=True)
        # Without the mark: the guardian must not end itself.
        environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        folders = [] if self._temporary is None else [str(self._temporary)]
        self._guardian = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "headgate.machine.guardian", self.mark, str(self._grace_s), *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )

    async def _watch(self, child: Child, reading: int, vital: bool) -> None:
        output = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb", buffering=0)
        )
        with child.log_path.open("ab", buffering=0) as log:  # no buffer: its last flush fails on a full disk
            await child._watch(output, log)
        transport.close()
        self._children.remove(child)
        if vital and not child.stopping and self._on_death is not None:
            self._on_death(child)


def last_sentence(output: str) -> str:
    """Return the last line that says something, with its control characters as spaces; empty if no line does.

    Of a line of a log in JSON, it is the message, if it is a warning or worse. The frames of a traceback are indented.
    """
    for line in reversed(output.splitlines()):
        logged = _json_object(line.encode())
        if logged is not None:
            line = str(logged.get("message", "")) if logged.get("level") in _SERIOUS else ""
        elif line[:1].isspace():
            continue
        if sentence := " ".join("".join(each if each.isprintable() else " " for each in line).split()):
            return sentence[:_REASON_CHARS_MAX]
    return ""


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
