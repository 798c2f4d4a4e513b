"""Time a step of our scheduler in vLLM beside vLLM's own: `schedule()` and `update_from_output()`, without a model.

A batch of requests decodes while WAITING requests wait. Each step is answered at once with one token for each request.
Every request that ends frees a slot for the next, so a step has decodes, sometimes an end, and an admission or two, as
on a busy server. vLLM's stats are on for both. Ours runs without and with the reports to /metrics (reports.py), for
which a step counts as STEP_S: the time of a step on a GPU; with them also with the options of OPTIONS. REMEMBERED
tenants have been served and have left.

Then the same with LoRA adapters (ADAPTER_CASES): requests with PLACES adapters run beside free slots. Those that wait
have other adapters, which lack a place as long; in the last case each tenth of them has no adapter.

Then requests of which the grammars are not compiled yet (GRAMMAR_CASES): vLLM looks at each of them in each step.

Runs alternate in one process. The median is that of the fastest run, because other work on the machine only adds time;
the 99th percentile is over all runs, of each step's shortest time in any run. vLLM has a venv of its own: run
`.venv-vllm/bin/python -m benchmarks.vllm_scheduler_cost` after `make test-vllm`.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
import tempfile
import time
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

BATCH = 256
WAITING = 5_000
PROMPT_TOKENS = 64
STEPS = 300
RUNS = 5
BLOCK_TOKENS = 32
STEP_S = 0.02
REMEMBERED = 10_000
TIERS = ("premium", "standard", "background")
CASES = ((256, 10, 0), (256, 1_000, 0), (256, 1_000, REMEMBERED), (64, 10, 0), (64, 1_000, 0), (64, 1_000, REMEMBERED))
"""Batch, tenants, and tenants that are remembered."""
PLACES = 4
ADAPTERS = 100
ADAPTER_STEPS = 40
ADAPTER_CASES = ((200, 10, 0), (200, 1_000, 0), (200, 1_000, 10))
"""Running requests, tenants, and how many waiting requests there are for each one without an adapter; 0: no such."""
GRAMMAR_CASES = ((100, 10), (1_000, 10), (5_000, 10), (5_000, 1_000))
"""Waiting requests without a compiled grammar, and tenants."""
OPTIONS: dict[str, dict[str, float]] = {
    "silent": {},
    "ours": {},
    "lead_max": {"lead_max": 2000.0},
    "reserve": {"premium_reserve": 0.3},
    "both": {"lead_max": 2000.0, "premium_reserve": 0.3},
}
_KEPT: list[Any] = []


def main() -> int:
    if importlib.util.find_spec("vllm") is None:
        print("vllm_scheduler_cost: skipped, vLLM is not installed; `make test-vllm` makes .venv-vllm, which has it")
        return 0
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="2", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.disable(logging.WARNING)
    from gpu_worker.engines.vllm import reports

    reports.time = clock = _StepClock()  # type: ignore[attr-defined, assignment]
    config, cache = _real_configuration()
    print(f"{WAITING} waiting in {len(TIERS)} tiers, prompts of {PROMPT_TOKENS} tokens; {RUNS} runs of {STEPS} steps")
    print("processor time of a step: vLLM's in us, median / P99; ours as ratios to it. `silent`: without reports")
    print(f"{'batch':>6} {'tenants':>8} {'left':>7} {'vLLM':>11}" + "".join(f" {kind:>12}" for kind in OPTIONS))
    for batch, tenants, remembered in CASES:
        runs: dict[str, list[list[float]]] = {kind: [] for kind in ("stock", *OPTIONS)}
        for _ in range(RUNS):
            for kind, steps in runs.items():
                steps.append(_run(kind, _Setup(config, cache, clock, batch, tenants, remembered)))
        (middle, tail), *ours = map(_figures, runs.values())
        shown = f"{1e6 * middle:>5.0f}/{1e6 * tail:>5.0f}"
        ratios = "".join(f"  {one / middle:.3f}/{other / tail:.3f}" for one, other in ours)
        print(f"{batch:>6} {tenants:>8} {remembered:>7} {shown}{ratios}", flush=True)
    _measure_adapters(config, cache, clock)
    _measure_grammars(config, cache, clock)
    return 0


def _measure_adapters(config: Any, cache: Any, clock: _StepClock) -> None:
    print(f"{WAITING} waiting with {ADAPTERS} adapters, {PLACES} places in use; us a step: median / most")
    print(f"{'running':>7} {'tenants':>8} {'without':>7}")
    for running, tenants, each in ADAPTER_CASES:
        shown = ""
        for kind in ("stock", "silent"):
            setup = _Setup(config, cache, clock, BATCH, tenants, 0, places=PLACES)
            steps = _run_adapters(kind, setup, running, each)
            shown += f"  {kind} {1e6 * median(steps):>6.0f}/{1e6 * max(steps):>6.0f}"
        print(f"{running:>7} {tenants:>8} {WAITING // each if each else 0:>7} {shown}", flush=True)


def _run_adapters(kind: str, setup: _Setup, running: int, each: int) -> list[float]:
    """Return the seconds of each step after the requests that run have begun."""
    scheduler = _scheduler(kind, setup)
    for number in range(running):
        scheduler.add_request(_request(number, setup.tenants, adapter=1 + number % PLACES, tokens=900))
    _time_steps(scheduler, setup.clock, 5)
    for number in range(running, running + WAITING):
        adapter = None if each and not number % each else 1 + PLACES + number % (ADAPTERS - PLACES)
        scheduler.add_request(_request(number, setup.tenants, adapter=adapter, tokens=900))
    return _time_steps(scheduler, setup.clock, ADAPTER_STEPS)


def _measure_grammars(config: Any, cache: Any, clock: _StepClock) -> None:
    running = 200
    print(f"{running} running, and waiting requests without a compiled grammar; us a step: median / most")
    print(f"{'waiting':>7} {'tenants':>8}")
    for waiting, tenants in GRAMMAR_CASES:
        shown = ""
        for kind in ("stock", "silent"):
            scheduler = _scheduler(kind, _Setup(config, cache, clock, BATCH, tenants, 0))
            for number in range(running):
                scheduler.add_request(_request(number, tenants, tokens=900))
            _time_steps(scheduler, clock, 5)
            for number in range(running, running + waiting):
                scheduler.add_request(_without_grammar(_request(number, tenants, tokens=900)))
            steps = _time_steps(scheduler, clock, ADAPTER_STEPS)
            shown += f"  {kind} {1e6 * median(steps):>6.0f}/{1e6 * max(steps):>6.0f}"
        print(f"{waiting:>7} {tenants:>8} {shown}", flush=True)


def _without_grammar(request: Any) -> Any:
    """Return the request as vLLM has it while another thread compiles its grammar."""
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.request import RequestStatus
    from vllm.v1.structured_output.request import StructuredOutputRequest

    request.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(json_object=True))
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return request


class _StepClock:
    """The time of the reports: STEP_S for each step."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class _Setup:
    config: Any
    cache: Any
    clock: _StepClock
    batch: int
    tenants: int
    remembered: int
    places: int | None = None
    """For LoRA adapters; None: no LoRA."""


def _figures(runs: list[list[float]]) -> tuple[float, float]:
    """Return the median of the fastest run, and the 99th percentile of the steps, each at its fastest."""
    shortest = sorted(map(min, zip(*runs, strict=True)))
    return min(map(median, runs)), shortest[int(0.99 * len(shortest))]


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


def _run(kind: str, setup: _Setup) -> list[float]:
    """Return the seconds of each step."""
    scheduler = _scheduler(kind, setup)
    if kind != "stock":
        _serve_and_leave(scheduler.queue_policy, setup.remembered)
    for number in range(WAITING):
        scheduler.add_request(_request(number, setup.tenants))
    return _time_steps(scheduler, setup.clock, STEPS)


def _time_steps(scheduler: Any, clock: _StepClock, count: int) -> list[float]:
    steps = []
    gc.collect()
    gc.disable()
    for _ in range(count):
        clock.now_s += STEP_S
        began_s = time.thread_time()
        output = scheduler.schedule()
        scheduled_s = time.thread_time()
        answer = _answer(output)
        answered_s = time.thread_time()
        scheduler.update_from_output(output, answer)
        steps.append(time.thread_time() - answered_s + scheduled_s - began_s)
    gc.enable()
    return steps


def _scheduler(kind: str, setup: _Setup) -> Any:
    from vllm.config import LoRAConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    from gpu_worker.engines.vllm.scheduler import TierScheduler

    config = copy(setup.config)
    config.scheduler_config = copy(config.scheduler_config)
    config.scheduler_config.max_num_seqs = setup.batch
    config.lora_config = None if setup.places is None else LoRAConfig(max_loras=setup.places)
    ours = {"send_stats": kind != "silent", "trust_client_fields": True, "tiers": OPTIONS.get(kind, {})}
    config.additional_config = {"headgate": ours}
    return (Scheduler if kind == "stock" else TierScheduler)(
        vllm_config=config,
        kv_cache_config=setup.cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=True,
    )


def _serve_and_leave(policy: Any, tenants: int) -> None:
    from gpu_worker.policies.fairness.interface import QueueRequest

    for number in range(tenants):
        policy.enqueue(QueueRequest(f"old{number}", f"gone{number}", 10))
        policy.admit(f"old{number}")
        policy.on_generated(f"old{number}", 3)
        policy.finish(f"old{number}")


def _request(number: int, tenants: int, *, adapter: int | None = None, tokens: int | None = None) -> Any:
    """`tokens`: of its output; None: between 100 and 199."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

    tenant = number % tenants
    extra = {"headgate_tenant": f"t{tenant}", "headgate_tier": TIERS[tenant % len(TIERS)]}
    tokens = 100 + number * 37 % 100 if tokens is None else tokens
    parameters = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=extra)
    lora = None if adapter is None else LoRARequest(f"adapter-{adapter}", adapter, "/adapter")
    return Request(f"r{number}", [5] * PROMPT_TOKENS, parameters, None, lora_request=lora)


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
