"""Time a step of our scheduler in vLLM beside vLLM's own: `schedule()` and `update_from_output()`, without a model.

A batch of BATCH requests decodes while WAITING requests wait. Each step is answered at once with one token for each
request. Every request that ends frees a slot for the next, so a step has decodes, sometimes an end, and an admission or
two, as on a busy server. Runs alternate in one process. The figure is the median step of the fastest run, because other
work on the machine only adds time. vLLM has a venv of its own: run `.venv-vllm/bin/python -m
benchmarks.vllm_scheduler_cost` after `make test-vllm`.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

BATCH = 256
WAITING = 5_000
PROMPT_TOKENS = 64
STEPS = 300
RUNS = 5
BLOCK_TOKENS = 32
TENANTS = (10, 100, 1_000)
_KEPT: list[Any] = []


def main() -> int:
    if importlib.util.find_spec("vllm") is None:
        print("vllm_scheduler_cost: skipped, vLLM is not installed; `make test-vllm` makes .venv-vllm, which has it")
        return 0
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="2", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.disable(logging.WARNING)
    from vllm.v1.core.sched.scheduler import Scheduler

    from gpu_worker.engines.vllm.scheduler import TierScheduler

    config, cache = _real_configuration()
    print(f"batch {BATCH}, {WAITING} waiting, prompts of {PROMPT_TOKENS} tokens")
    print(f"processor time, us: the fastest of {RUNS} medians of {STEPS} steps")
    print(f"{'tenants':>8} {'vLLM':>8} {'ours':>8} {'ratio':>7} {'of schedule':>12} {'mean batch':>11}   tiers")
    for tiers in (("standard",), ("premium", "standard", "background")):
        for tenants in TENANTS:
            stock, ours = [], []
            for _ in range(RUNS):
                stock.append(_run(Scheduler, config, cache, tenants, tiers))
                ours.append(_run(TierScheduler, config, cache, tenants, tiers))
            theirs, mine = min(run[0] for run in stock), min(run[0] for run in ours)
            schedule = min(run[1] for run in ours) / min(run[1] for run in stock)
            batch = f"{fmean(run[2] for run in stock):.0f}/{fmean(run[2] for run in ours):.0f}"
            print(
                f"{tenants:>8} {1e6 * theirs:>8.0f} {1e6 * mine:>8.0f} {mine / theirs:>7.3f} {schedule:>12.3f}"
                f" {batch:>11}   {', '.join(tiers)}"
            )
    return 0


def _real_configuration() -> tuple[Any, Any]:
    """Return the configuration of a real engine with a tiny model."""
    from vllm import LLM

    from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model

    model = ensure_tiny_model(Path(tempfile.mkdtemp()), TinySize())
    llm = LLM(
        str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=4096,
        max_num_batched_tokens=8192,
        max_num_seqs=BATCH,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    config, cache = scheduler.vllm_config, scheduler.kv_cache_config
    _KEPT.append(llm)  # an engine that ends invalidates its configuration
    return config, cache


def _run(kind: Any, config: Any, cache: Any, tenants: int, tiers: tuple[str, ...]) -> tuple[float, float, float]:
    """Return the median seconds of a step and of its `schedule()`, and the mean batch."""
    from vllm.v1.structured_output import StructuredOutputManager

    scheduler = kind(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
    )
    for number in range(WAITING):
        scheduler.add_request(_request(number, tenants, tiers))
    steps, schedules, batches = [], [], []
    gc.collect()
    gc.disable()
    for _ in range(STEPS):
        began_s = time.thread_time()
        output = scheduler.schedule()
        scheduled_s = time.thread_time()
        answer = _answer(output)
        answered_s = time.thread_time()
        scheduler.update_from_output(output, answer)
        schedules.append(scheduled_s - began_s)
        steps.append(time.thread_time() - answered_s + schedules[-1])
        batches.append(len(output.num_scheduled_tokens))
    gc.enable()
    return median(steps), median(schedules), fmean(batches)


def _request(number: int, tenants: int, tiers: tuple[str, ...]) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    tenant = number % tenants
    extra = {"headgate_tenant": f"t{tenant}", "headgate_tier": tiers[tenant % len(tiers)]}
    parameters = SamplingParams(max_tokens=100 + number * 37 % 100, ignore_eos=True, extra_args=extra)
    return Request(f"r{number}", [5] * PROMPT_TOKENS, parameters, None)


def _answer(output: Any) -> Any:
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


if __name__ == "__main__":
    sys.exit(main())
