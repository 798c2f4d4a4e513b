"""The process of vLLM's server: started with the worker's interpreter, ended with all its children."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpu_worker.engines.vllm.server import PARENT_VARIABLE

SERVER = "gpu_worker.engines.vllm.server"
DEVELOPER_VARIABLE = "VLLM_SERVER_DEV_MODE"
GRACE_S = 5.0
"""vLLM ends its engine core and frees the device in this time."""


class ServerProcess:
    """One run of the server. Its socket is in a folder of its own, which only this user can read."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-vllm-"))
        self._process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        return self._folder / "server.sock"

    @property
    def exit_code(self) -> int | None:
        """None while the server runs."""
        return None if self._process is None else self._process.returncode

    async def start(self, words: Sequence[str], *, developer_routes: bool = False) -> None:
        """Start. The server logs on the worker's standard error: its standard output is for the worker's own line.

        `developer_routes`: the server also has the routes of vLLM's developer mode, such as `/sleep`.
        """
        routes = {DEVELOPER_VARIABLE: "1"} if developer_routes else {}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", SERVER, "--uds", str(self.socket), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            env={**os.environ, PARENT_VARIABLE: str(os.getpid()), **routes},
            start_new_session=True,
        )

    async def has_ended(self, within_s: float) -> bool:
        """Wait for the end, at most `within_s`. Return whether the server has ended."""
        if self._process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._process.wait()
        return self.exit_code is not None

    async def stop(self) -> None:
        """End the server: by SIGTERM, and after GRACE_S by SIGKILL; its children too."""
        if self._process is not None:
            if self.exit_code is None:
                self._process.send_signal(signal.SIGTERM)
                await self.has_ended(GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
