"""Part 6: what a swap and a recompute of a victim cost by its length, beside the cost model's predictions.

A swap is timed in two ways. `copy`: the manager's own copies of as many free blocks out and back, on an idle engine; by
the wall clock, waiting for the device before and after, and on a GPU by events on the stream of these copies. `engine`:
what the engine records when it evicts a background request of this length for a premium request and resumes it. A
recompute is timed by the engine's record alone. The predictions use the calibration that the engine measured at its
start, before these figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.bench import Bench, run_engine
from benchmarks.gpu.run import Report
from benchmarks.preemption_costs import STRATEGIES, VICTIM_TOKENS, crossover, preempted, row
from gpu_worker.engines.transformers.engine import TransformersEngine
from gpu_worker.policies.preemption import Strategy


@dataclass(frozen=True, slots=True)
class CopySeconds:
    """Out and back together. `events_s`: None without CUDA."""

    wall_s: float
    events_s: float | None


async def measure_victims(bench: Bench, report: Report) -> None:
    sizes = bench.sizes
    shape = replace(bench.shape, batch=1, swap_bytes=sizes.swap_bytes, calibrate=True)
    lengths = [length for length in sizes.victims if length + VICTIM_TOKENS <= min(sizes.context, sizes.kv_tokens)]
    async with run_engine(bench, "tiered:vtc", shape) as engine:
        true = engine._admission.calibration
        swap: Any = engine._scheduler.swap  # type: ignore[union-attr]
        report.say(victims_head())
        rows: list[dict[str, Any]] = []
        for length in lengths:
            await wait_idle(engine)
            copied = await asyncio.to_thread(copy_seconds, bench, swap, length, sizes.victim_times)
            seen = {
                strategy: [
                    await preempted(engine, true, length, strategy, f"{length}-{turn}-{strategy}")
                    for turn in range(sizes.victim_times)
                ]
                for strategy in STRATEGIES
            }
            found = row(true, length, [seen[strategy] for strategy in STRATEGIES])
            found["copy_wall_ms"] = 1e3 * copied.wall_s
            found["copy_events_ms"] = None if copied.events_s is None else 1e3 * copied.events_s
            rows.append(found)
            report.say(victims_line(found))
            report.record("rows", rows)
    predicted, measured = true.crossover_tokens(max(lengths)), crossover(rows)
    report.record("crossover", {"predicted": predicted, "measured": measured})
    report.say(f"{true.kv_bytes_per_token / 1e3:.1f} KB of KV a token")
    report.say(f"a swap is cheaper from {predicted} tokens on by the cost model; measured: from {measured} on")


async def wait_idle(engine: TransformersEngine) -> None:
    """Wait until the engine has removed the last victim, which was aborted."""
    while engine.stats().running:  # noqa: ASYNC110 - the engine's thread sets no event
        await asyncio.sleep(0.001)


def copy_seconds(bench: Bench, swap: Any, length: int, times: int) -> CopySeconds:
    """Copy the blocks of `length` tokens out and back, on an idle engine. Return the medians."""
    blocks = -(-length // bench.sizes.block_tokens)
    out, back = swap._there_and_back(blocks)
    stream = swap._compute_stream if bench.on_cuda else None
    samples = []
    for _ in range(times + 1):
        first, second = time_copy(bench, out, stream), time_copy(bench, back, stream)
        samples.append((first[0] + second[0], first[1] + second[1]))
    walls, events = zip(*samples[1:], strict=True)
    return CopySeconds(median(walls), median(events) if bench.on_cuda else None)


def time_copy(bench: Bench, copy: Callable[[], object], stream: Any) -> tuple[float, float]:
    """Return the seconds by the wall clock, and by events on the copies' stream (0 without CUDA)."""
    if not bench.on_cuda:
        began_s = time.perf_counter()
        copy()
        return time.perf_counter() - began_s, 0.0
    stream = stream or torch.cuda.current_stream()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    bench.synchronize()
    began_s = time.perf_counter()
    began.record(stream)
    copy()
    ended.record(stream)
    bench.synchronize()
    return time.perf_counter() - began_s, 1e-3 * float(began.elapsed_time(ended))


def victims_head() -> str:
    titles = f"{'':>16} {'swap, ms':^49} {'recompute, ms':^29}"
    columns = f"{'predicted':>9} {'engine':>9} {'ratio':>9}"
    return f"{titles}\n{'tokens':>7} {'MB':>8} {'copy':>9} {'events':>9} {columns} {columns}"


def victims_line(found: dict[str, Any]) -> str:
    events = "-" if found["copy_events_ms"] is None else f"{found['copy_events_ms']:.2f}"
    cells = [f"{found['tokens']:>7} {found['mb']:>8.2f} {found['copy_wall_ms']:>9.2f} {events:>9}"]
    for strategy in (Strategy.SWAP, Strategy.RECOMPUTE):
        by = found["by"][strategy.value]
        cells.append(f"{by['predicted_ms']:>9.2f} {by['measured_ms']:>9.2f} {by['ratio']:>9.2f}")
    return " ".join(cells)
