"""Part 1: the card, its copies to and from the host, and a matrix product."""

from __future__ import annotations

import os
import platform
import subprocess
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.run import Report
from gpu_worker.engines.copy_rates import timed_s

TRIES = 5


async def measure_card(bench: Bench, report: Report) -> None:
    facts = device_facts(bench)
    report.record("facts", facts)
    report.say(", ".join(f"{name} {value}" for name, value in facts.items()))
    report.say(f"{'copy, bytes':>12} {'out, ms':>9} {'GB/s':>8} {'back, ms':>9} {'GB/s':>8}")
    copies = []
    for size in bench.sizes.copies_bytes:
        out_s, back_s = copy_s(bench.device, size)
        copies.append({"bytes": size, "out_s": out_s, "back_s": back_s})
        cells = f"{1e3 * out_s:>9.3f} {size / out_s / 1e9:>8.2f} {1e3 * back_s:>9.3f} {size / back_s / 1e9:>8.2f}"
        report.say(f"{size:>12} {cells}")
    report.record("copies", copies)
    rate = product_flops(bench)
    report.record("product_flops", rate)
    report.say(f"matrix product of {bench.sizes.product} squared, {bench.dtype}: {rate / 1e12:.2f} TFLOP/s")


def device_facts(bench: Bench) -> dict[str, Any]:
    facts = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "CPUs": os.cpu_count(),
    }
    if not bench.on_cuda:
        return {"device": "CPU", **facts}
    card = torch.cuda.get_device_properties(0)
    return {
        "device": card.name,
        "GiB": round(card.total_memory / 2**30, 1),
        "multiprocessors": card.multi_processor_count,
        "driver": driver_version(),
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        **facts,
    }


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def copy_s(device: str, size_bytes: int) -> tuple[float, float]:
    """Return the seconds of a copy to the host and of one back, with pinned memory on a GPU: the median of TRIES."""
    on_device = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    on_host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device == "cuda")
    out, back = [], []
    for _ in range(TRIES + 1):
        out.append(timed_s(lambda: on_host.copy_(on_device, non_blocking=True), device))
        back.append(timed_s(lambda: on_device.copy_(on_host, non_blocking=True), device))
    return median(out[1:]), median(back[1:])  # the first touches the pages


def product_flops(bench: Bench) -> float:
    """Return the FLOP per second of a product of square matrices."""
    side = bench.sizes.product
    left, right = (torch.randn(side, side, device=bench.device, dtype=bench.dtype) for _ in range(2))
    seconds = [timed_s(lambda: left @ right, bench.device) for _ in range(TRIES + 1)]
    return 2.0 * side**3 / median(seconds[1:])
