"""How fast KV blocks move between the device and host memory here: measured, not read off a data sheet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

LARGE_BYTES = 64 << 20
SMALL_BYTES = 1 << 12
TRIES = 5


@dataclass(frozen=True, slots=True)
class CopyRates:
    """`base_s`: what the smallest copy takes."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    base_s: float


def measure_copy_rates(device: str | None = None) -> CopyRates:
    """Some 50 ms on a GPU: a large and a small copy each way, pinned where there is a GPU, the median of TRIES."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    base_s = _copy_s(device, SMALL_BYTES, out=True)
    out_s, in_s = _copy_s(device, LARGE_BYTES, out=True), _copy_s(device, LARGE_BYTES, out=False)
    return CopyRates(LARGE_BYTES / max(out_s - base_s, 1e-9), LARGE_BYTES / max(in_s - base_s, 1e-9), base_s)


def _copy_s(device: str, size_bytes: int, *, out: bool) -> float:
    on_device = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    on_host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device == "cuda")
    target, source = (on_host, on_device) if out else (on_device, on_host)
    seconds = []
    for _ in range(TRIES + 1):
        _wait(device)
        began_s = time.perf_counter()
        target.copy_(source, non_blocking=True)
        _wait(device)
        seconds.append(time.perf_counter() - began_s)
    return median(seconds[1:])  # the first touches the pages


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
