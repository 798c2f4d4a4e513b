"""Makes transformers' continuous batching manager with our scheduler, sampling and swap, and decides what it takes of
its device: the sizes of cache and steps, and the type of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from gpu_worker.engines.transformers.batch import PolicyRouter
from gpu_worker.engines.transformers.processors import (
    EndTokens,
    Filters,
    LogitBias,
    Penalties,
    PerRequestNoise,
    PerRequestTemperature,
)
from gpu_worker.engines.transformers.scheduler import PolicyScheduler
from gpu_worker.engines.transformers.swap import HostSwap

AUTO = "auto"
CPU_KV_TOKENS = 8192
"""A CPU's memory also belongs to everything else on the machine, so its cache does not take what is free."""
_CPU_STEP_TOKENS = 512
_CUDA_STEP_TOKENS = 2048
"""A step's attention mask has a row for each of its tokens, and a column for each token of the cache."""
_MEMORY_SHARE = 0.8
"""Part of the GPU memory left by the model that the library plans with: cache, masks, activations. The rest is for our
sampling, with tensors of the vocabulary's size, and for fragmentation."""


@dataclass(frozen=True, slots=True)
class TransformersShape:
    """`batch`: sequences in a batch at most. `kv_tokens`: size of the cache; 0: what the GPU can hold, on a CPU
    CPU_KV_TOKENS. `step_tokens`: tokens of a step at most, longer prompts are prefilled in pieces; 0: by the device.
    `threads`: of torch, on a CPU. `swap_bytes`: host memory for swapped KV. `calibrate`: measure prompts, tokens and
    copies at the start."""

    batch: int = 4
    kv_tokens: int = 0
    block_tokens: int = 16
    step_tokens: int = 0
    threads: int = 1
    swap_bytes: int = 0
    calibrate: bool = False

    def fit_to(self, device_type: str) -> TransformersShape:
        """Return the shape with the device's sizes. `kv_tokens` stays 0 on a GPU, where the library measures."""
        on_cpu = device_type == "cpu"
        return replace(
            self,
            kv_tokens=self.kv_tokens or (CPU_KV_TOKENS if on_cpu else 0),
            step_tokens=self.step_tokens or (_CPU_STEP_TOKENS if on_cpu else _CUDA_STEP_TOKENS),
        )


def choose_dtype(name: str, device: str, *, is_built: bool) -> torch.dtype | str:
    """Return the type of weights and cache, as `from_pretrained` takes it.

    `auto` is float32 on a CPU. On a GPU it is the type of the checkpoint, and for a model that was built here bfloat16,
    or float16 if the GPU is too old for that.
    """
    if name != AUTO:
        found: torch.dtype = getattr(torch, name)
        return found
    if device == "cpu":
        return torch.float32
    if is_built:
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return AUTO


def describe_sizes(model: Any, cache: Any, *, kv_tokens: int, step_tokens: int) -> str:
    """Return a line for people: the device, the type, and the sizes of cache and steps."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "CPU"
    dtype = str(model.dtype).removeprefix("torch.")
    gigabytes = cache.num_sectors * cache.bytes_per_sector / 1e9
    return f"{device}, {dtype}: {kv_tokens:,} tokens of KV ({gigabytes:.1f} GB), at most {step_tokens:,} in a step"


def make_manager(
    model: Any, end_tokens: frozenset[int], shape: TransformersShape, router: PolicyRouter
) -> ContinuousBatchingManager:
    """Make the manager. CUDA graphs are off: our sampling decides row by row in Python, and a graph would repeat the
    decisions of the batch that it was captured from."""
    name = _name(router)
    SCHEDULER_MAPPING[name] = partial(PolicyScheduler, router)
    config = ContinuousBatchingConfig(
        scheduler_type=name,
        page_size=shape.block_tokens,
        num_blocks=-(-shape.kv_tokens // shape.block_tokens) if shape.kv_tokens else None,
        max_memory_percent=_MEMORY_SHARE,
        max_batch_tokens=shape.step_tokens,
        max_requests_per_batch=shape.batch,
        safety_margin=0.0,
        allow_block_sharing=False,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=sorted(end_tokens) or -1)
    manager: ContinuousBatchingManager = model.init_continuous_batching(greedy, config)
    manager.output_router = router
    recorder = router.logprobs.recorder
    sampling = [LogitBias(), EndTokens(end_tokens), Penalties(), PerRequestTemperature(), Filters(), PerRequestNoise()]
    processors = LogitsProcessorList([recorder.first, *sampling, recorder.last])
    manager.logit_processor = ContinuousBatchingLogitsProcessorList(processors)
    manager.logit_processor.tensors_required = len(processors)
    return manager


def _name(router: PolicyRouter) -> str:
    return f"headgate-{id(router)}"


def make_ready(manager: ContinuousBatchingManager, shape: TransformersShape, router: PolicyRouter) -> None:
    """Allocate the cache, and the host memory for swapped KV. Raises MemoryError with what to change."""
    if manager.model.device.type == "cuda":
        _avoid_plans_for_each_step()
    try:
        manager.warmup()
    except (MemoryError, torch.OutOfMemoryError) as error:
        sizes = f"{shape.kv_tokens:,} tokens of KV" if shape.kv_tokens else "the KV cache"
        advice = "do not fit into the memory: choose a smaller --kv-tokens or --step-tokens"
        raise MemoryError(f"{sizes} and steps of {shape.step_tokens:,} tokens {advice} ({error})") from None
    processor = manager.batch_processor
    if shape.swap_bytes:
        processor.scheduler.swap = HostSwap(processor, shape.swap_bytes, router.counts)
        processor.offloading_manager = processor.scheduler.swap


def _avoid_plans_for_each_step() -> None:
    """Turn cuDNN's attention off in this process. Torch prefers it on a large card, and it makes a plan on the CPU for
    each new shape. Nearly every step of a batch has a new shape: on an H200 the plans took 70 of a step's 105 ms, the
    card's own work 10 (benchmarks/results/gpu.md)."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def run_engine_thread(manager: ContinuousBatchingManager, router: PolicyRouter) -> None:
    """Generate until the manager stops, then end every request that is left."""
    try:
        manager._run_generation_loop()
    finally:
        SCHEDULER_MAPPING.pop(_name(router), None)
        router.end_all()
