"""The process of vLLM's server: started with the worker's interpreter, put to sleep and woken up, ended with all its
children.

Sleep discards the KV cache. The weights go to host memory at level 1, and nowhere at level 2. The server has these
routes with `VLLM_SERVER_DEV_MODE=1` only, and frees memory with `--enable-sleep-mode` only, on GPUs. After level 2 the
weights are read from disk again, in three calls (vLLM's documentation, "Sleep Mode"). Without the second one the server
answers with gibberish and reports no error (vllm#29341), so level 2 is only used if it is requested. The canary
(model_swaps.py) finds wrong weights in both cases.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from gpu_worker.engines.interface import SleepFailed
from gpu_worker.engines.vllm.server import PARENT_VARIABLE

SERVER = "gpu_worker.engines.vllm.server"
_DEVELOPER_VARIABLE = "VLLM_SERVER_DEV_MODE"
_GRACE_S = 5.0
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
        routes = {_DEVELOPER_VARIABLE: "1"} if developer_routes else {}
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
        """End the server: by SIGTERM, and after _GRACE_S by SIGKILL; its children too."""
        if self._process is not None:
            if self.exit_code is None:
                self._process.send_signal(signal.SIGTERM)
                await self.has_ended(_GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt")
"""The formats that vLLM loads, in its order: only the files of the first one that is there are loaded."""


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the model's weights on disk: what a sleep keeps in host memory, without quantization at load.

    Raises ValueError if the folder has no weights.
    """
    for pattern in _WEIGHT_FILES:
        if files := list(folder.glob(pattern)):
            return sum(file.stat().st_size for file in files)
    raise ValueError(f"{folder} has no weights ({', '.join(_WEIGHT_FILES)}), so --sleep-memory-gb cannot count them")


async def fall_asleep(server: httpx.AsyncClient, level: int) -> None:
    """Put the server to sleep at level 1 or 2. The caller bounds the time. Raises SleepFailed."""
    await _post(server, f"/sleep?level={level}")
    if not await _is_sleeping(server):
        raise SleepFailed("the server reports that it does not sleep")


async def wake(server: httpx.AsyncClient, level: int) -> None:
    """Wake the server up from this level. The caller bounds the time. Raises SleepFailed."""
    if level == 1:
        await _post(server, "/wake_up")
    else:
        await _post(server, "/wake_up?tags=weights")
        await _post(server, "/collective_rpc", {"method": "reload_weights"})
        await _post(server, "/wake_up?tags=kv_cache")
    if await _is_sleeping(server):
        raise SleepFailed("the server reports that it still sleeps")


async def _post(server: httpx.AsyncClient, path: str, body: Mapping[str, str] | None = None) -> None:
    try:
        answer = await server.post(f"http://vllm{path}", json=body, timeout=None)
    except httpx.HTTPError as error:
        raise SleepFailed(f"POST {path}: {type(error).__name__}") from None
    if answer.status_code != 200:
        raise SleepFailed(f"POST {path}: HTTP status {answer.status_code}")


async def _is_sleeping(server: httpx.AsyncClient) -> bool:
    try:
        answer = await server.get("http://vllm/is_sleeping")
        found = answer.json()["is_sleeping"]
    except (httpx.HTTPError, ValueError, TypeError, KeyError) as error:
        raise SleepFailed(f"GET /is_sleeping: {type(error).__name__}") from None
    if not isinstance(found, bool):
        raise SleepFailed("GET /is_sleeping: neither true nor false")
    return found
