"""The class that an operator names: `--scheduler-cls`. It checks vLLM, and chooses our scheduler for it.

vLLM schedules a step ahead of the results (asynchronously) where it can, by its configuration. Our two schedulers are
for the two cases, so nobody has to know which one a machine needs. This module imports nothing of vLLM: a vLLM without
a name that our modules import ends the start with a sentence.
"""

from __future__ import annotations

from typing import Any

from gpu_worker.engines.vllm.compatibility import require_vllm
from gpu_worker.engines.vllm.names import VllmPart

_SWAP_CONNECTOR = "SwapConnector"


class ChosenScheduler:
    """Called as vLLM calls a scheduler's class, it returns one of ours. Raises IncompatibleVllm, and ValueError for
    wrong settings, each with one sentence."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        transfer = vllm_config.kv_transfer_config
        swaps = transfer is not None and transfer.kv_connector == _SWAP_CONNECTOR
        require_vllm([VllmPart.SCHEDULER, VllmPart.SWAP] if swaps else [VllmPart.SCHEDULER])
        from gpu_worker.engines.vllm.scheduler import AsyncTierScheduler, TierScheduler

        chosen = AsyncTierScheduler if vllm_config.scheduler_config.async_scheduling else TierScheduler
        return chosen(vllm_config, *args, **kwargs)
