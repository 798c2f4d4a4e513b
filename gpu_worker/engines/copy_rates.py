"""The rates at which KV blocks move between device and host memory: measured, not taken from a data sheet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import torch

from gpu_worker.engines.step_costs import fit

LARGE_BYTES = 64 << 20
_SMALL_BYTES = 1 << 12
_TRIES = 5


@dataclass(frozen=True, slots=True)
class CopyRates:
    """`base_s`: the time of the smallest copy."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    base_s: float


def measure_copy_rates(device: str | None = None) -> CopyRates:
    """Measure a large and a small copy each way, with pinned memory on a GPU, the median of _TRIES: about 50 ms."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    base_s = _copy_s(device, _SMALL_BYTES, out=True)
    out_s, in_s = _copy_s(device, LARGE_BYTES, out=True), _copy_s(device, LARGE_BYTES, out=False)
    return CopyRates(LARGE_BYTES / max(out_s - base_s, 1e-9), LARGE_BYTES / max(in_s - base_s, 1e-9), base_s)


def fitted_copy_rates(
    sizes_bytes: Iterable[int], copy: Callable[[int], tuple[Callable[[], None], Callable[[], None]]], device: str
) -> CopyRates:
    """Measure an engine's own copies, which may have many parts and be slower than plain ones. `copy(size)` returns the
    functions that copy so many bytes out and back. Before each call the CPU's caches are filled with other data, as
    after a step of a model."""
    other_data = torch.empty(_SMALL_BYTES if device == "cuda" else LARGE_BYTES, dtype=torch.uint8)

    def cold_s(one_way: Callable[[], None]) -> float:
        other_data.fill_(0)
        return timed_s(one_way, device)

    out_s: list[tuple[int, float]] = []
    in_s: list[tuple[int, float]] = []
    for size_bytes in sizes_bytes:
        out, back = copy(size_bytes)
        samples = [(cold_s(out), cold_s(back)) for _ in range(_TRIES + 1)][1:]
        out_s.append((size_bytes, median(seconds for seconds, _ in samples)))
        in_s.append((size_bytes, median(seconds for _, seconds in samples)))
    out_base_s, out_byte_s, _ = fit(out_s, degree=1)
    in_base_s, in_byte_s, _ = fit(in_s, degree=1)
    return CopyRates(1 / max(out_byte_s, 1e-15), 1 / max(in_byte_s, 1e-15), (out_base_s + in_base_s) / 2)


def timed_s(copy: Callable[[], object], device: str) -> float:
    """Return the seconds of `copy`, waiting for the device before and after."""
    _wait(device)
    began_s = time.perf_counter()
    copy()
    _wait(device)
    return time.perf_counter() - began_s


def _copy_s(device: str, size_bytes: int, *, out: bool) -> float:
    on_device = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    on_host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device == "cuda")
    target, source = (on_host, on_device) if out else (on_device, on_host)
    seconds = [timed_s(lambda: target.copy_(source, non_blocking=True), device) for _ in range(_TRIES + 1)]
    return median(seconds[1:])  # the first touches the pages


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
