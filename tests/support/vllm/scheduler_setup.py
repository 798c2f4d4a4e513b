"""The configuration and the time of a scheduler that runs without a model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

from gpu_worker.engines.copy_rates import measure_copy_rates
from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from gpu_worker.engines.vllm import reports as vllm_reports
from gpu_worker.engines.vllm import scheduler as vllm_scheduler
from gpu_worker.policies.fairness.tiered import SETTINGS_OF_ALL
from tests.support.vllm.engine import vllm_driver
from tests.support.vllm.model_runner import BLOCK_TOKENS
from vllm.config import KVTransferConfig, LoRAConfig
from vllm.v1.core.sched.scheduler import Scheduler

CONTEXT_TOKENS = 64


@dataclass(frozen=True)
class BaseConfig:
    """vLLM's own configuration for a tiny model."""

    config: Any
    cache: Any


@contextmanager
def base_config() -> Iterator[BaseConfig]:
    model = ensure_tiny_model(Path(tempfile.mkdtemp()), TinySize())
    with vllm_driver(model, blocks=64, scheduler=Scheduler) as driver:
        yield BaseConfig(driver.scheduler.vllm_config, driver.scheduler.kv_cache_config)


@dataclass(frozen=True)
class Setup:
    """`ahead`: a step is scheduled before the results of the step before it. `blocks`: usable KV blocks. `swap_blocks`:
    of the host; None runs without the connector. `v2`: as for vLLM's newer model runner. `hands_off`: as with a
    connector by which another engine gets the KV: output in flight at a preemption is dropped."""

    ahead: bool = False
    blocks: int = 16
    batch: int = 4
    step_tokens: int = 64
    caching: bool = False
    swap_blocks: int | None = None
    v2: bool = False
    hands_off: bool = False
    policy: str = "tiered:vtc"
    tiers: Mapping[str, object] = field(default_factory=dict)
    max_loras: int | None = None
    """None: no LoRA."""


def configs_of(base: BaseConfig, setup: Setup) -> tuple[Any, Any]:
    """Return vLLM's configuration and its KV cache configuration for a setup."""
    config = copy(base.config)
    config.scheduler_config = copy(config.scheduler_config)
    config.cache_config = copy(config.cache_config)
    config.model_config = copy(config.model_config)
    blocks = setup.blocks + 1  # vLLM keeps one
    config.scheduler_config.max_num_seqs = setup.batch
    config.scheduler_config.max_num_batched_tokens = setup.step_tokens
    config.scheduler_config.async_scheduling = setup.ahead
    config.scheduler_config.disable_hybrid_kv_cache_manager = (
        True  # as vLLM does for a connector without support for it
    )
    config.cache_config.enable_prefix_caching = setup.caching
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = BLOCK_TOKENS
    config.model_config.max_model_len = CONTEXT_TOKENS
    is_tiered = setup.policy.startswith("tiered")
    tiers = {name: value for name, value in setup.tiers.items() if is_tiered or name in SETTINGS_OF_ALL}
    settings = {"policy": setup.policy, "tiers": tiers, "trust_client_fields": True, "send_stats": True}
    config.additional_config = {"headgate": settings}
    config.lora_config = None if setup.max_loras is None else LoRAConfig(max_loras=setup.max_loras)
    (group,), (placed,) = base.cache.kv_cache_groups, base.cache.kv_cache_tensors
    spec = replace(group.kv_cache_spec, block_size=BLOCK_TOKENS)
    stride = placed.block_stride * BLOCK_TOKENS // group.kv_cache_spec.block_size
    outermost = placed.layer_stride >= base.cache.num_blocks * placed.block_stride
    placed = replace(
        placed,
        size=blocks * stride,
        block_stride=stride,
        layer_stride=blocks * stride if outermost else stride // len(placed.layers),
    )
    cache_config = replace(
        base.cache,
        num_blocks=blocks,
        kv_cache_tensors=[placed],
        kv_cache_groups=[replace(group, kv_cache_spec=spec)],
        hash_block_size=BLOCK_TOKENS,
    )
    if setup.swap_blocks is not None:
        width = stride * (len(placed.layers) if outermost else 1)
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="SwapConnector",
            kv_connector_module_path="gpu_worker.engines.vllm.swap",
            kv_role="kv_producer",
            kv_connector_extra_config={"swap_gib": (setup.swap_blocks + 0.5) * width / (1 << 30)},
        )
    return config, cache_config


class FakeTime:
    """Replaces the module `time` in our scheduler and its reports."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._reads = 0

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        """Return a later time at each call."""
        self._reads += 1
        return self.now_s + 1e-3 * self._reads


@contextmanager
def fake_time() -> Iterator[FakeTime]:
    """Run our scheduler on a fake time, with copy rates that are measured only once."""
    time = FakeTime()
    with MonkeyPatch.context() as patch:
        patch.setattr(vllm_scheduler, "time", time)
        patch.setattr(vllm_reports, "time", time)
        patch.setattr(vllm_reports, "measure_copy_rates", _copy_rates)
        yield time


_copy_rates = cache(measure_copy_rates)
