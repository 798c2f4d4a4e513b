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

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.simple_kv_offload.cuda_mem_ops import pin_tensor

_Pairs = Sequence[tuple[int, int]]
"""Pairs of a device block and a host block, as indices, which are the same on every rank."""


class SwapUsage(NamedTuple):
    """Bytes, summed over the tensor parallel ranks. The last two count since the start."""

    total_bytes: int
    used_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int


@dataclass
class SwapMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """The copies of one step."""

    out: _Pairs = ()
    back: _Pairs = ()


class SwapLedger:
    """The scheduler's half: which request owns each host block, and the copies of the next step."""

    def __init__(self, host_blocks: int, block_tokens: int, block_bytes: int) -> None:
        self.held: dict[str, tuple[int, list[int]]] = {}
        """Maps a request's id to the number of its first tokens on the host, and to their host blocks in order."""
        self._host_blocks, self.block_tokens, self.block_bytes = host_blocks, block_tokens, block_bytes
        self._free = list(range(host_blocks))  # a heap: the lowest first, so that a copy's blocks lie side by side
        self._out: dict[str, _Pairs] = {}
        self._back: list[tuple[int, int]] = []
        self._swapped_blocks = (0, 0)

    @property
    def usage(self) -> SwapUsage:
        counts = (self._host_blocks, self._host_blocks - len(self._free), *self._swapped_blocks)
        return SwapUsage(*(count * self.block_bytes for count in counts))

    def take(self, request_id: str, device_blocks: Sequence[int], tokens: int) -> bool:
        """Copy the first `tokens` tokens out in this step. False: no tokens, no free blocks, or already swapped out."""
        needed = -(-tokens // self.block_tokens)
        if not 0 < needed <= len(self._free) or request_id in self.held:
            return False
        blocks = [heapq.heappop(self._free) for _ in range(needed)]
        self.held[request_id] = tokens, blocks
        self._out[request_id] = list(zip(device_blocks[:needed], blocks, strict=True))
        return True

    def covered_tokens(self, request_id: str, tokens_max: int) -> int:
        return min(tokens_max, self.held.get(request_id, (0, []))[0])

    def give_back(self, request_id: str, device_blocks: Sequence[int], start: int, end: int) -> None:
        """Copy tokens `start` to `end` back to the request's blocks in this step; free the rest of its host blocks."""
        _, blocks = self.held.pop(request_id, (0, []))
        span = slice(start // self.block_tokens, -(-end // self.block_tokens) if end > start else 0)
        self._back += zip(device_blocks[span], returning := blocks[span], strict=True)
        self._release(set(blocks).difference(returning))

    def forget(self, request_id: str) -> None:
        """Free the host blocks of a request that ends; a copy out that was not sent to the workers yet is not made."""
        _, blocks = self.held.pop(request_id, (0, []))
        self._out.pop(request_id, None)
        self._release(blocks)

    def drain(self) -> SwapMetadata:
        """Return this step's copies. The host blocks of copies back are free from the next step on, not within it."""
        step = SwapMetadata([pair for pairs in self._out.values() for pair in pairs], self._back)
        self._out, self._back = {}, []
        out, back = self._swapped_blocks
        self._swapped_blocks = out + len(step.out), back + len(step.back)
        self._release(host for _, host in step.back)
        return step

    def _release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            heapq.heappush(self._free, block)


_STAGE_BYTES_MAX = 32 << 20
"""Device memory, beyond what vLLM accounts for, in which a victim's pages are gathered into one copy."""


class Region(NamedTuple):
    """The place of a part of each block: `width` bytes at `start` + index x `width` in the allocation of `layer`."""

    layer: str
    start: int
    width: int


def _regions_of(kv_cache_config: Any) -> list[Region]:
    """Return the bytes of each block index, from vLLM's own placement instead of the tensors' shapes.

    If layers (or heads) are the outermost dimension, each has its own region; if blocks are, one region has all layers.
    """
    found: dict[int, Region] = {}
    for placed in kv_cache_config.kv_cache_tensors:
        span = kv_cache_config.num_blocks * placed.block_stride
        outermost = placed.layer_stride >= span
        parts = len(placed.layers) * placed.layer_stride // span if outermost else 1
        first = placed.offset if outermost else 0
        for start in range(first, first + parts * span, span):
            found[start] = Region(placed.layers[0], start, placed.block_stride)
    return list(found.values())


class BlockCopier:
    """The worker's half: copies whole blocks, each gathered from its regions into one row, and back.

    A block has a page in each layer. Gathered on the device first, a victim is a few large copies over the bus.
    """

    def __init__(self, kv_caches: dict[str, torch.Tensor], kv_cache_config: Any, host_blocks: int) -> None:
        regions = _regions_of(kv_cache_config)
        word = torch.int64 if all((r.start | r.width) % 8 == 0 for r in regions) else torch.uint8
        self._parts = [_part(kv_caches[r.layer], r, kv_cache_config.num_blocks, word) for r in regions]
        ends = list(accumulate((part.shape[1] for part in self._parts), initial=0))
        self._columns = [slice(start, end) for start, end in pairwise(ends)]
        stage_blocks = max(1, _STAGE_BYTES_MAX // (ends[-1] * word.itemsize))
        self._device = self._parts[0].device
        self._on_cuda = self._device.type == "cuda"
        self._stage = torch.empty((stage_blocks, ends[-1]), dtype=word, device=self._device)
        self._host = torch.zeros((host_blocks, ends[-1]), dtype=word)
        if self._on_cuda and host_blocks:
            pin_tensor(self._host)  # in place: torch rounds its own pinned allocations up to a power of two

    def out(self, pairs: _Pairs) -> None:
        for stage, devices, runs in self._chunks(pairs):
            for part, columns in zip(self._parts, self._columns, strict=True):
                stage[:, columns] = part.index_select(0, devices)
            for rows, hosts in runs:
                self._host[hosts].copy_(stage[rows], non_blocking=True)

    def back(self, pairs: _Pairs) -> None:
        for stage, devices, runs in self._chunks(pairs):
            for rows, hosts in runs:
                stage[rows].copy_(self._host[hosts], non_blocking=True)
            for part, columns in zip(self._parts, self._columns, strict=True):
                part.index_copy_(0, devices, stage[:, columns])

    def _chunks(self, pairs: _Pairs) -> Iterator[tuple[torch.Tensor, torch.Tensor, Iterator[tuple[slice, slice]]]]:
        """Yield chunks that fit the stage: its rows for them, their device blocks, their runs on the host.

        The indices go to the device from pinned memory; otherwise the host would wait for the forward pass before.
        """
        for start in range(0, len(pairs), len(self._stage)):
            devices, hosts = zip(*pairs[start : start + len(self._stage)], strict=True)
            indices = torch.tensor(devices, pin_memory=self._on_cuda).to(self._device, non_blocking=True)
            yield self._stage[: len(hosts)], indices, _runs(hosts)


def _part(cache: torch.Tensor, region: Region, num_blocks: int, word: torch.dtype) -> torch.Tensor:
    """Return a region as a row for each block, whatever shape and dtype the attention backend uses."""
    words = region.width // word.itemsize
    view = torch.empty(0, dtype=word, device=cache.device)
    return view.set_(cache.untyped_storage(), region.start // word.itemsize, (num_blocks, words), (words, 1))


def _runs(blocks: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Yield runs of consecutive host blocks: their places in the sequence, and on the host."""
    breaks = [row for row in range(1, len(blocks)) if blocks[row] != blocks[row - 1] + 1]
    for start, end in pairwise([0, *breaks, len(blocks)]):
        yield slice(start, end), slice(blocks[start], blocks[start] + end - start)


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
        rank_bytes = sum(region.width for region in _regions_of(kv_cache_config))
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
