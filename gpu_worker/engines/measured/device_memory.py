"""The free memory of the GPUs that this process may use, as nvidia-smi reports it.

The worker itself must not measure with CUDA: its context would take some hundred megabytes of the memory.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
MIB = 1 << 20
WAIT_S = 10.0


async def free_device_bytes() -> int | None:
    """Return the free bytes of all visible GPUs together; None without nvidia-smi, or if it does not answer."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = ("-i", visible) if visible else ()
    try:
        query = await asyncio.create_subprocess_exec(
            *QUERY,
            *chosen,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(WAIT_S):
            text, _ = await query.communicate()
        return sum(int(line) for line in text.decode().split("\n") if line) * MIB if query.returncode == 0 else None
    except (TimeoutError, ValueError):
        return None
    finally:
        with suppress(ProcessLookupError):
            query.kill()
