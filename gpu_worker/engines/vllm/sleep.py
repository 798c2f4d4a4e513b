"""Sleep of vLLM's server at level 1: the weights go to host memory, the KV cache is discarded.

The server has these routes with `VLLM_SERVER_DEV_MODE=1` only, and frees memory with `--enable-sleep-mode` only, on
GPUs. Level 2, which also discards the weights, is not used: it is reported to give gibberish after the wake-up.
"""

from __future__ import annotations

from pathlib import Path

import httpx

from gpu_worker.engines.sleep import SleepFailed

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt")
"""The formats that vLLM loads, in its order: only the files of the first one that is there are loaded."""


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the model's weights on disk: what a sleep keeps in host memory, without quantization at load.

    Raises ValueError if the folder has no weights.
    """
    for pattern in WEIGHT_FILES:
        if files := list(folder.glob(pattern)):
            return sum(file.stat().st_size for file in files)
    raise ValueError(f"{folder} has no weights ({', '.join(WEIGHT_FILES)}), so --sleep-memory-gb cannot count them")


async def fall_asleep(server: httpx.AsyncClient) -> None:
    """Put the server to sleep. The caller bounds the time. Raises SleepFailed."""
    await _post(server, "/sleep?level=1")
    if not await _is_sleeping(server):
        raise SleepFailed("the server reports that it does not sleep")


async def wake(server: httpx.AsyncClient) -> None:
    """Wake the server up. The caller bounds the time. Raises SleepFailed."""
    await _post(server, "/wake_up")
    if await _is_sleeping(server):
        raise SleepFailed("the server reports that it still sleeps")


async def _post(server: httpx.AsyncClient, path: str) -> None:
    try:
        answer = await server.post(f"http://vllm{path}", timeout=None)
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
