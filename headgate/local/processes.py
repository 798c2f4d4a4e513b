"""Child processes that never outlive the stack: not on Ctrl-C, not on SIGTERM, not when it is killed with -9.

Each child runs in a session of its own (a Ctrl-C reaches the stack alone, which then stops its children in order) and
carries the stack's mark in its environment. A guardian process waits on a pipe for the stack's end, however it comes,
and ends whatever still carries the mark.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from headgate.local.guardian import MARK_VARIABLE, end_marked, marked

ANNOUNCEMENT_BYTES_MAX = 65536
LOG_TAIL_CHARS = 2000


class ChildDied(Exception):
    """A child ended before it announced itself. The message carries the end of its log."""


class Child:
    """One running child. Its standard error, and its standard output after the announcement, are in `log_path`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process
        self._stopping = False
        self._announced: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._announced.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.returncode

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def announcement(self, timeout_s: float) -> dict[str, Any]:
        """The first line of its standard output that is a JSON object. Raises ChildDied, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(self._announced)

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        """At once, with its whole process group; expected, so that no death is reported."""
        self._stopping = True
        if self.returncode is None:
            self._kill_group()

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, then SIGKILL to its whole group after the grace. Returns its exit status; repeatable."""
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
        return self.log_path.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left in it (macOS says EPERM for zombies)

    async def _copy_output(self, output: asyncio.StreamReader, log: IO[bytes]) -> None:
        line = b""
        while chunk := await output.read(65536):
            log.write(chunk)
            log.flush()
            if not self._announced.done():
                *lines, line = (line + chunk).split(b"\n")
                line = line[:ANNOUNCEMENT_BYTES_MAX]
                self._read_announcement(lines)

    async def _watch(self, output: asyncio.StreamReader, log: IO[bytes]) -> None:
        """Until it ended and all that it wrote is in the log."""
        copying = asyncio.create_task(self._copy_output(output, log))
        await self._process.wait()
        # Now, while its number cannot have been given to another process: grandchildren go with it.
        self._kill_group()
        # One that left the group may hold the pipe open; what the child itself wrote is read by then.
        await asyncio.wait({copying}, timeout=1.0)
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        if not self._announced.done():
            self._announced.set_exception(
                ChildDied(f"{self.name} ended with status {self.returncode} before it was ready: {self.log_tail()}")
            )

    def _read_announcement(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            said = _json_object(line)
            if said is not None:
                self._announced.set_result(said)
                return


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


class Children:
    """All children of one stack.

    `mark`: an id never used before, by which the guardian knows them. `on_death(child)`: called when a vital
    child ends that nobody asked to. `grace_s`: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self, mark: str, log_directory: Path, *, on_death: Callable[[Child], None] | None = None, grace_s: float = 5.0
    ) -> None:
        self._mark = mark
        self._log_directory = log_directory
        self._on_death = on_death
        self._grace_s = grace_s
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
        """Start a child with exactly this environment and the stack's mark; its log is `<name>.log`, appended to.

        Of one that is not `vital` a death is no news: it is not reported.
        """
        self._watch_over()
        log_path = self._log_directory / f"{name}.log"
        # A pipe of our own: with one of asyncio's, `wait` would wait for whoever else holds its other end.
        reading, writing = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=log,
                    env={**environment, MARK_VARIABLE: self._mark},
                    cwd=cwd,
                    start_new_session=True,
                )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        child = Child(name, process, log_path)
        self._children.append(child)
        task = asyncio.create_task(self._watch(child, reading, vital))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return child

    def survivors(self) -> list[int]:
        """Process ids that still carry the mark: what a clean stop leaves empty."""
        return [process.pid for process in marked(self._mark)]

    async def stop(self) -> None:
        """Ends every child, all at once, and what they in turn may have left; then the guardian. Repeatable."""
        await asyncio.gather(*(child.stop(self._grace_s) for child in self._children))
        await asyncio.gather(*self._watching)
        await asyncio.to_thread(end_marked, self._mark, self._grace_s)
        if self._guardian is not None:
            await asyncio.to_thread(self._guardian.communicate)
            self._guardian = None

    def _watch_over(self) -> None:
        """Starts the guardian before the first child."""
        if self._guardian is not None:
            return
        self._log_directory.mkdir(parents=True, exist_ok=True)
        # Not marked itself: it must outlive what it ends.
        environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        self._guardian = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "headgate.local.guardian", self._mark, str(self._grace_s)],
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
        with child.log_path.open("ab") as log:
            await child._watch(output, log)
        transport.close()
        self._children.remove(child)
        if vital and not child.stopping and self._on_death is not None:
            self._on_death(child)
