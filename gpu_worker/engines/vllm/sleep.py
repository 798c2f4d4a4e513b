"""Sleep of vLLM's server. It discards the KV cache. The weights go to host memory at level 1, and nowhere at level 2.

The server has these routes with `VLLM_SERVER_DEV_MODE=1` only, and frees memory with `--enable-sleep-mode` only, on
GPUs. After level 2 the weights are read from disk again, in three calls (vLLM's documentation, "Sleep Mode"). Without
the second one the server answers with gibberish and reports no error (vllm#29341), so level 2 is only used if it is
requested. The canary (model_swaps.py) finds wrong weights in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import httpx

from gpu_worker.engines.interface import SleepFailed

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
