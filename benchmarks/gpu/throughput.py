"""Part 3: the throughput of transformers' own scheduler and of ours, and the scheduler's share of a step.

All requests are sent at once, in the order A-B-C-D-D-C-B-A, so that a machine that becomes slower or faster affects all
alike. Each run has an engine of its own with the same model, cache, batch and steps. A is the library's own manager
with its own scheduler and router. In B, C and D our logits processors run too (temperature and noise for each row),
although all requests are greedy. The clients are in this process, and every token is sent to them. No run uses CUDA
graphs: our sampling decides row by row in Python (gpu_worker/engines/transformers/manager.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, fields
from random import Random
from statistics import mean
from typing import Any

from benchmarks.gpu.bench import Bench, Planned, StepMeter, plan, run_engine, run_stock
from benchmarks.gpu.run import Report
from gpu_worker.engines.interface import Token
from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

STOCK = "transformers"
POLICIES = ("fcfs", "vtc", "tiered:vtc")
TENANTS = 4


@dataclass(frozen=True, slots=True)
class Throughput:
    """`share`: the scheduler's part of a step."""

    tokens_per_s: float
    requests_per_s: float
    step_ms: float
    share: float


async def measure_throughput(bench: Bench, report: Report) -> None:
    sizes = bench.sizes
    random = Random(bench.seed + 1)
    planned = [plan(bench, random, f"run-{n}", sizes.run_prompt, sizes.run_output) for n in range(sizes.run_requests)]
    config, end_tokens = await warm_up(bench, planned[: sizes.batch])
    runs: dict[str, list[Throughput]] = {}
    report.say(table_head())
    for name in (STOCK, *POLICIES, *reversed(POLICIES), STOCK):
        if name == STOCK:
            found = await run_stock_once(bench, config, end_tokens, planned)
        else:
            found = await run_ours_once(bench, name, bench.shape, planned)
        runs.setdefault(name, []).append(found)
        report.say(table_line(name, found, None))
        report.record("runs", {each: [asdict(run) for run in runs[each]] for each in runs})
    means = {name: mean_of(each) for name, each in runs.items()}
    report.say("mean of both runs; the ratio is that of the tokens/s to transformers' own")
    for name, found in means.items():
        report.say(table_line(name, found, found.tokens_per_s / means[STOCK].tokens_per_s))
    report.record("ratios", {name: each.tokens_per_s / means[STOCK].tokens_per_s for name, each in means.items()})


async def warm_up(bench: Bench, planned: list[Planned]) -> tuple[Any, frozenset[int]]:
    """Run some requests. Return the library's configuration of our engine, and the tokens that end a text."""
    async with run_engine(bench, POLICIES[0], bench.shape) as engine:
        await generate_all(engine, planned)
        return engine._manager.continuous_batching_config, engine._end_tokens  # type: ignore[union-attr]


async def run_ours_once(bench: Bench, policy: str, shape: TransformersShape, planned: list[Planned]) -> Throughput:
    meter = StepMeter()
    async with run_engine(bench, policy, shape, meter) as engine:
        began_s = time.perf_counter()
        tokens = await generate_all(engine, planned)
        return throughput_of(tokens, len(planned), time.perf_counter() - began_s, meter)


async def run_stock_once(bench: Bench, config: Any, end_tokens: frozenset[int], planned: list[Planned]) -> Throughput:
    meter = StepMeter()
    loop = asyncio.get_running_loop()
    async with run_stock(bench, config, end_tokens, meter) as manager:
        began_s = time.perf_counter()
        answers: list[asyncio.Future[int]] = [loop.create_future() for _ in planned]
        for each, answer in zip(planned, answers, strict=True):
            manager.register_result_handler(each.name, StockAnswer(answer).take)
            manager.add_request(each.tokens, request_id=each.name, max_new_tokens=each.output, streaming=True)
        tokens = sum(await asyncio.gather(*answers))
        return throughput_of(tokens, len(planned), time.perf_counter() - began_s, meter)


@dataclass(slots=True)
class StockAnswer:
    """Resolves a future with the number of a request's tokens."""

    answer: asyncio.Future[int]

    def take(self, output: Any) -> None:
        if not output.is_finished() or self.answer.done():
            return
        if output.error:
            self.answer.set_exception(RuntimeError(f"transformers' manager failed: {output.error}"))
        else:
            self.answer.set_result(len(output.generated_tokens))


async def generate_all(engine: TransformersEngine, planned: list[Planned]) -> int:
    """Return the output tokens of all requests, which are sent at once by TENANTS tenants in turn."""

    async def generate(each: Planned, tenant: str) -> int:
        tokens = 0
        async for event in engine.generate(each.request(tenant)):
            if isinstance(event, Token):
                tokens = event.output_tokens
        return tokens

    work = (generate(each, f"tenant-{number % TENANTS}") for number, each in enumerate(planned))
    return sum(await asyncio.gather(*work))


def throughput_of(tokens: int, requests: int, seconds: float, meter: StepMeter) -> Throughput:
    return Throughput(
        tokens / seconds, requests / seconds, 1e3 * meter.step_s / meter.steps if meter.steps else 0.0, meter.share
    )


def mean_of(runs: list[Throughput]) -> Throughput:
    names = [field.name for field in fields(Throughput)]
    return Throughput(*(mean(getattr(run, name) for run in runs) for name in names))


def table_head() -> str:
    return f"{'scheduler':18} {'output tokens/s':>16} {'requests/s':>11} {'step, ms':>9} {'scheduler':>10} {'ratio':>7}"


def table_line(name: str, found: Throughput, ratio: float | None) -> str:
    figures = f"{found.tokens_per_s:>16.1f} {found.requests_per_s:>11.2f} {found.step_ms:>9.2f} {found.share:>10.2%}"
    return f"{name:18} {figures} " + ("" if ratio is None else f"{ratio:>7.3f}")
