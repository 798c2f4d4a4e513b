"""Preemption by swapping, for vLLM: a victim's KV blocks go to host memory, and come back when it is resumed.

vLLM's own preemption throws the KV cache away, and its offloading runs on CUDA only. Here the scheduler calls
`swap_out(request)` before `_preempt_request(request)`, and vLLM later finds the tokens as a synchronous load.

    schedule()                                           the step, in the order of the device's stream
    swap_out                 takes host blocks           handle_preemptions   out: device → host
    update_state_after_alloc pairs them with new blocks  start_load_kv        back: host → device
    build_connector_meta     both lists go to workers    forward              may overwrite blocks that were copied out

Only this order makes it correct. Every copy is issued on the stream that computes. A copy out comes after the forward
pass that may still write the victim's last token (asynchronous scheduling) and before the pass that reuses its blocks.
A host block is free again from the step after its copy back. This uses internals of vLLM 0.32, hence the pinned
version.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from gpu_worker.engines.vllm.swap.block_copier import BlockCopier, regions_of
from gpu_worker.engines.vllm.swap.ledger import SwapLedger, SwapMetadata, SwapUsage

GIB = 1 << 30


class SwapConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The swap in vLLM: one object in the scheduler, and one in every worker.

    `kv_connector_extra_config` has `swap_gib`: host memory of one engine, all its ranks together; 0 disables swapping.
    The class is not a SupportsHMA, so vLLM gives models with sliding windows one full group. `refuse_unsupported`
    refuses other caches.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        refuse_unsupported(vllm_config, kv_cache_config)
        rank_bytes = sum(region.width for region in regions_of(kv_cache_config))
        block_bytes = vllm_config.parallel_config.tensor_parallel_size * rank_bytes
        self._host_blocks = int(self._kv_transfer_config.kv_connector_extra_config["swap_gib"] * GIB) // block_bytes
        (group,) = kv_cache_config.kv_cache_groups
        self.ledger = SwapLedger(self._host_blocks, group.kv_cache_spec.block_size, block_bytes)
        self._copier: BlockCopier | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """A swap copy delivers KV to no other engine: output in flight at a preemption is kept, not dropped."""
        return False

    @property
    def usage(self) -> SwapUsage:
        return self.ledger.usage

    def swap_out(self, request: Any) -> bool:
        """Swap out a running request. False: it must be recomputed.

        Call this in schedule(), right before `_preempt_request(request)`. It copies every token that vLLM counts as
        computed, also those that the step in flight is writing. The request must have been running since an earlier
        step: the blocks of a request that this schedule() admitted are not written yet.
        """
        if request.skip_reading_prefix_cache or request.resumable:
            return False
        (device_blocks,) = self._kv_cache_manager.get_block_ids(request.request_id)
        return self.ledger.take(request.request_id, device_blocks, request.num_computed_tokens)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens to copy back. At least one is left to compute, so that the next one can be sampled;
        rejected draft tokens are left out too."""
        covered = self.ledger.covered_tokens(request.request_id, request.num_tokens - 1)
        return max(0, covered - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        end = self.ledger.covered_tokens(request.request_id, request.num_tokens - 1)
        (device_blocks,) = blocks.get_block_ids()
        self.ledger.give_back(request.request_id, device_blocks, end - num_external_tokens, end)

    def build_connector_meta(self, scheduler_output: Any) -> SwapMetadata:
        return self.ledger.drain()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        self.ledger.forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Forget all copies, for example after a change of weights: old KV must not come back."""
        for request_id in list(self.ledger.held):
            self.ledger.forget(request_id)
        return True

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._copier = BlockCopier(kv_caches, self._kv_cache_config, self._host_blocks)

    def handle_preemptions(self, kv_connector_metadata: SwapMetadata) -> None:
        """Copy out. vLLM calls this first in every step, also in one without tokens."""
        if self._copier is not None:
            self._copier.out(kv_connector_metadata.out)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy back, before the forward pass: for vLLM these are synchronous loads."""
        if self._copier is not None:
            self._copier.back(self._get_connector_metadata().back)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: the stream orders the load before the layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: only victims are saved."""

    def wait_for_save(self) -> None:
        """Do nothing: the stream orders a copy out before any write to its blocks."""


def refuse_unsupported(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raise ValueError unless the cache is pages of full attention by position, the same on every rank.

    vLLM's newer model runner zeroes blocks, and copies on write (hits within a block), before a connector saves them.
    """
    groups, parallel = kv_cache_config.kv_cache_groups, vllm_config.parallel_config
    spec = groups[0].kv_cache_spec
    specs = list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]
    refusals = {
        f"{len(groups)} KV cache groups": len(groups) > 1,
        type(specs[0]).__name__: any(type(one) not in (FullAttentionSpec, MLAAttentionSpec) for one in specs),
        "a KV cache that is zeroed": kv_cache_config.needs_kv_cache_zeroing,
        "prefix hits within a block": kv_cache_config.hash_block_size not in (None, spec.block_size),
        "KV blocks in host memory": any(placed.host_resident for placed in kv_cache_config.kv_cache_tensors),
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1,
    }
    if refused := [feature for feature, found in refusals.items() if found]:
        raise ValueError(f"SwapConnector cannot swap {', '.join(refused)}")
