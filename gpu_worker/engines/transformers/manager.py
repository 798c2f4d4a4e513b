"""Makes transformers' continuous batching manager with our scheduler, sampling and swap."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from gpu_worker.engines.transformers.batch import PolicyRouter
from gpu_worker.engines.transformers.row_processors import EndTokens, Filters, LogitBias, Penalties
from gpu_worker.engines.transformers.sampling import PerRequestNoise, PerRequestTemperature
from gpu_worker.engines.transformers.scheduler import PolicyScheduler
from gpu_worker.engines.transformers.sizes import MEMORY_SHARE, TransformersShape
from gpu_worker.engines.transformers.swap import HostSwap


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
        max_memory_percent=MEMORY_SHARE,
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
        avoid_plans_for_each_step()
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


def avoid_plans_for_each_step() -> None:
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
