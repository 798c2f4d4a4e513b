"""The class that an operator names, or a worker: `--scheduler-cls`. It checks vLLM, and chooses our scheduler for it.

vLLM schedules a step ahead of the results (asynchronously) where it can, by its configuration. Our two schedulers are
for the two cases, so an operator need not know which one a machine needs. This module imports nothing of vLLM: a vLLM
without a name that our modules import ends the start with a sentence. So does a feature of vLLM with which the shares
would not hold. It also lets the scheduler salt the prefixes of requests that Python code named (in_process.py).
"""

from __future__ import annotations

from typing import Any

from gpu_worker.engines.vllm.compatibility import require_vllm
from gpu_worker.engines.vllm.in_process import salt_prefixes
from gpu_worker.engines.vllm.names import VllmPart
from gpu_worker.engines.vllm.settings import scheduler_settings

_SWAP_CONNECTOR = "SwapConnector"


class ChosenScheduler:
    """Called as vLLM calls a scheduler's class, it returns one of ours. Raises IncompatibleVllm, and ValueError for
    wrong settings and for a feature that is refused, each with one sentence."""

    def __new__(cls, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> Any:
        require_vllm([VllmPart.SCHEDULER])
        if _SWAP_CONNECTOR in connectors_of(vllm_config.kv_transfer_config):
            require_vllm([VllmPart.SWAP])
        refuse_features(vllm_config, kv_cache_config)
        from gpu_worker.engines.vllm.scheduler import AsyncTierScheduler, TierScheduler

        chosen = AsyncTierScheduler if vllm_config.scheduler_config.async_scheduling else TierScheduler
        scheduler = chosen(vllm_config, kv_cache_config, *args, **kwargs)
        if scheduler_settings(vllm_config.additional_config, vllm_config.scheduler_config.policy).trust_client_fields:
            _salt_requests(scheduler)
        return scheduler


def _salt_requests(scheduler: Any) -> None:
    """Let the scheduler salt the prefixes of each request before it gets it."""
    add = scheduler.add_request

    def add_request(request: Any) -> None:
        salt_prefixes(request)
        add(request)

    scheduler.add_request = add_request


def refuse_features(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raise ValueError, with one sentence, for a feature with which our scheduler does not do what it promises."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    groups = len(kv_cache_config.kv_cache_groups)
    later_connectors = connectors_of(vllm_config.kv_transfer_config)[1:]
    refusals = {
        "data parallelism, because each replica would share its own capacity only; start a server for each replica": (
            parallel.data_parallel_size > 1 or parallel.data_parallel_index > 0
        ),
        "pipeline parallelism, which was never tested with it; use --tensor-parallel-size": (
            parallel.pipeline_parallel_size > 1
        ),
        "a diffusion model, which has a scheduler of its own": vllm_config.diffusion_config is not None,
        "an encoder-decoder model, because it does not count the blocks of the encoder": model.is_encoder_decoder,
        "SwapConnector behind another connector, which would load what is swapped; list it once, as the first": (
            _SWAP_CONNECTOR in later_connectors
        ),
        f"{groups} groups of KV blocks, because it plans with one; add --disable-hybrid-kv-cache-manager": groups > 1,
    }
    for refusal, found in refusals.items():
        if found:
            raise ValueError(f"headgate's scheduler refuses {refusal}")


def connectors_of(transfer: Any) -> list[str]:
    """Return the names of the KV connectors, in the order in which vLLM asks them for what they can load."""
    if transfer is None or not transfer.kv_connector:
        return []
    listed = (transfer.kv_connector_extra_config or {}).get("connectors", ())
    return [transfer.kv_connector, *(each.get("kv_connector") for each in listed)][bool(listed) :]
