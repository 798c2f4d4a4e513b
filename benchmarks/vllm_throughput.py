"""Compare vLLM with our scheduler and with its own: throughput, time per token, and a premium request in a flood.

    .venv-vllm/bin/python -m benchmarks.vllm_throughput [--model DIR] [--requests N] [--batch N] [--runs N]

It runs wherever vLLM runs. The relevant comparison is on a GPU with a larger model (`--model DIR --batch 256 --requests
2000`). On a CPU with the built tiny model a step takes a few milliseconds, so the scheduler's part of it is ten times
as large. Runs alternate, each in a process of its own; the figure is the best run of each side, and CPU seconds too,
because they depend less on what else the machine does. Ten tenants send requests with prompts of 32 to 160 tokens and
answers of 64 to 192. The time per token is a request's time from its first to its last token by its tokens, and the
figure the median of the requests. In the flood all of them are background, and one premium request arrives when a tenth
of the answers is done. The host's copy rates are printed too, for swaps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

STOCK = "vllm.v1.core.sched.scheduler.Scheduler"
OURS = "gpu_worker.engines.vllm.scheduler.TierScheduler"
STOCK_ASYNC = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
OURS_ASYNC = "gpu_worker.engines.vllm.scheduler.AsyncTierScheduler"


_PLAIN: tuple[tuple[str, str, Callable[[Iterable[float]], float], int], ...] = (
    ("tokens/s", "tokens_per_s", max, 0),
    ("tokens per CPU second", "tokens_per_cpu_s", max, 0),
    ("time per token, ms", "tpot_ms", min, 2),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_throughput", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="a local folder; default: a tiny model is built")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("SCHEDULER", "FLOOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vllm_throughput: skipped, vLLM is not installed; `make test-vllm` makes .venv-vllm, which has it")
        return 0
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if options.one:
        print(json.dumps(_run(options, options.one[0], flood=options.one[1] == "flood")))
        return 0
    if options.model is None:
        options.model = str(_tiny_model())
    _compare(options)
    return 0


def _compare(options: argparse.Namespace) -> None:
    import torch

    from gpu_worker.engines.copy_rates import measure_copy_rates

    on_gpu = torch.cuda.is_available()
    stock, ours = (STOCK_ASYNC, OURS_ASYNC) if on_gpu else (STOCK, OURS)
    plain: dict[str, list[dict[str, float]]] = {stock: [], ours: []}
    for _ in range(options.runs):
        for name, runs in plain.items():
            runs.append(_apart(options, name, "plain"))
    flood = {name: _apart(options, name, "flood") for name in (stock, ours)}
    rates = measure_copy_rates()
    device = torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores"
    print(f"{device}; {options.requests} requests, batch {options.batch}, best of {options.runs}")
    print(f"{'':28} {'vLLM':>12} {'ours':>12} {'ratio':>8}")
    for label, name, best, digits in _PLAIN:
        theirs, mine = (best(run[name] for run in plain[kind]) for kind in (stock, ours))
        print(f"{label:28} {theirs:>12.{digits}f} {mine:>12.{digits}f} {mine / theirs:>8.3f}")
    for name, unit in (("premium_ttft_s", "s"), ("premium_ttft_steps", "steps")):
        theirs, mine = flood[stock][name], flood[ours][name]
        print(f"{f'premium TTFT in a flood, {unit}':28} {theirs:>12.3f} {mine:>12.3f} {mine / theirs:>8.3f}")
    print(f"copies to the host {rates.out_bytes_per_s / 1e9:.1f} GB/s, back {rates.in_bytes_per_s / 1e9:.1f} GB/s")


def _apart(options: argparse.Namespace, scheduler: str, kind: str) -> dict[str, float]:
    """Run once in a process of its own: vLLM frees its memory only when its process ends."""
    arguments = ["--model", options.model, "--requests", str(options.requests), "--batch", str(options.batch)]
    command = [sys.executable, "-m", "benchmarks.vllm_throughput", *arguments, "--one", scheduler, kind]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    found: dict[str, float] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def _run(options: argparse.Namespace, scheduler: str, *, flood: bool) -> dict[str, float]:
    from vllm import LLM

    llm = LLM(
        options.model,
        max_num_seqs=options.batch,
        enable_prefix_caching=False,
        scheduler_cls=scheduler,
        additional_config={"headgate": {"trust_client_fields": True}},
        distributed_executor_backend="uni",
        **_for_a_cpu(),
    )
    engine = llm.llm_engine
    for number in range(options.requests):
        _add(engine, f"r{number}", 32 + number * 37 % 129, 64 + number * 53 % 129, number % 10, flood=flood)
    began_s, began_cpu_s, generated, steps, ended = time.perf_counter(), time.process_time(), 0, 0, 0
    spans: dict[str, tuple[float, float, int]] = {}
    came_s = first_s = 0.0
    came_step = first_step = 0
    while engine.has_unfinished_requests():
        steps += 1
        for output in engine.step():
            generated += len(output.outputs[0].token_ids)
            ended += output.finished
            now_s = time.perf_counter()
            came_first_s, _, tokens = spans.get(output.request_id, (now_s, now_s, -1))
            spans[output.request_id] = came_first_s, now_s, tokens + 1
            if output.request_id == "premium" and not first_s:
                first_s, first_step = now_s, steps
        if flood and not came_s and ended >= options.requests / 10:
            came_s, came_step = time.perf_counter(), steps
            _add(engine, "premium", 64, 16, 99, flood=False, tier="premium")
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    prompts = sum(32 + number * 37 % 129 for number in range(options.requests))
    return {
        "tokens_per_s": (prompts + generated) / seconds,
        "tokens_per_cpu_s": (prompts + generated) / cpu_s,
        "tpot_ms": 1e3 * median((last - first) / tokens for first, last, tokens in spans.values() if tokens),
        "premium_ttft_s": first_s - came_s,
        "premium_ttft_steps": first_step - came_step,
    }


def _add(engine: Any, name: str, prompt: int, output: int, tenant: int, *, flood: bool, tier: str = "standard") -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    extra = {"headgate_tenant": f"t{tenant}", "headgate_tier": "background" if flood else tier}
    parameters = SamplingParams(
        max_tokens=output,
        temperature=0.0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra,
    )
    engine.add_request(name, {"prompt_token_ids": [5 + place % 200 for place in range(prompt)]}, parameters)


def _for_a_cpu() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {}
    return {"dtype": "float32", "enforce_eager": True, "block_size": 32, "num_gpu_blocks_override": 2048}


def _tiny_model() -> Path:
    from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model

    return ensure_tiny_model(Path(tempfile.mkdtemp()), TinySize(4, 256))


if __name__ == "__main__":
    sys.exit(main())
