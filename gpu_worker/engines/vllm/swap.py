"""Preemption by swapping, for vLLM: a victim's KV blocks go to host memory, and come back when it is resumed.

vLLM's own preemption throws the KV cache away, and its offloading runs on CUDA only. Here the scheduler says
`swap_out(request)` before `_preempt_request(request)`, and vLLM finds the tokens again as a synchronous load.

    schedule()                                           the step it makes, in the order of the device's stream
    swap_out                 host blocks taken           handle_preemptions   out: device → host
    update_state_after_alloc paired with new blocks      start_load_kv        back: host → device
    build_connector_meta     both lists go to workers    forward              may overwrite what was copied out

Order is all that keeps this right. Every copy is issued on the stream that computes: a copy out comes after the forward
pass that may still write the victim's last token (asynchronous scheduling) and before the one that reuses its blocks;
and a host block is free again from the step after its copy back. Written to the internals of vLLM 0.32, hence the pin.
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

GIB = 1 << 30
Pairs = Sequence[tuple[int, int]]
"""(device block, host block), as indices, which are the same on every rank."""
STAGE_BYTES_MAX = 32 << 20
"""Device memory taken at start-up, beyond what vLLM accounts for, to gather a victim's pages into one copy."""


class SwapUsage(NamedTuple):
    """Bytes, summed over the tensor parallel ranks; the last two count from the start."""

    total_bytes: int
    used_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int


@dataclass
class SwapMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What one step copies."""

    out: Pairs = ()
    back: Pairs = ()


class SwapLedger:
    """The scheduler's half: which host block is whose, and what the step under construction copies."""

    def __init__(self, host_blocks: int, block_tokens: int, block_bytes: int) -> None:
        self.held: dict[str, tuple[int, list[int]]] = {}
        """By request: how many of its first tokens, and the host blocks they are in, in order."""
        self._host_blocks, self.block_tokens, self.block_bytes = host_blocks, block_tokens, block_bytes
        self._free = list(range(host_blocks))  # a heap: the lowest first, so that a copy's blocks lie side by side
        self._out: dict[str, Pairs] = {}
        self._back: list[tuple[int, int]] = []
        self._swapped_blocks = (0, 0)

    @property
    def usage(self) -> SwapUsage:
        counts = (self._host_blocks, self._host_blocks - len(self._free), *self._swapped_blocks)
        return SwapUsage(*(count * self.block_bytes for count in counts))

    def take(self, request_id: str, device_blocks: Sequence[int], tokens: int) -> bool:
        """Has this step copy the first `tokens` tokens out. False: nothing to keep, no room, or it is out."""
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
        """Tokens `start` to `end` return to the request's blocks in this step; the rest of the copy is not needed."""
        _, blocks = self.held.pop(request_id, (0, []))
        span = slice(start // self.block_tokens, -(-end // self.block_tokens) if end > start else 0)
        self._back += zip(device_blocks[span], returning := blocks[span], strict=True)
        self._release(set(blocks).difference(returning))

    def forget(self, request_id: str) -> None:
        """For a request that ends while swapped out; a copy not yet sent to the workers is not made."""
        _, blocks = self.held.pop(request_id, (0, []))
        self._out.pop(request_id, None)
        self._release(blocks)

    def drain(self) -> SwapMetadata:
        """This step's copies. The host blocks of the copies back are free from the next step on, never within it."""
        step = SwapMetadata([pair for pairs in self._out.values() for pair in pairs], self._back)
        self._out, self._back = {}, []
        out, back = self._swapped_blocks
        self._swapped_blocks = out + len(step.out), back + len(step.back)
        self._release(host for _, host in step.back)
        return step

    def _release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            heapq.heappush(self._free, block)


class Region(NamedTuple):
    """Where a part of each block lies: `width` bytes at `start` + index x `width` of the allocation of `layer`."""

    layer: str
    start: int
    width: int


def regions_of(kv_cache_config: Any) -> list[Region]:
    """The bytes that a block index owns, from vLLM's own placement rather than from the tensors' shapes.

    Where layers (or heads) are outermost, each has a region of its own; where blocks are, one region holds all layers.
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
    """The worker's half: whole blocks, gathered from their regions into one row each and back.

    A block's pages lie apart, one a layer: gathered on the device first, a victim is a few large copies over the bus.
    """

    def __init__(self, kv_caches: dict[str, torch.Tensor], kv_cache_config: Any, host_blocks: int) -> None:
        regions = regions_of(kv_cache_config)
        word = torch.int64 if all((r.start | r.width) % 8 == 0 for r in regions) else torch.uint8
        self._parts = [_part(kv_caches[r.layer], r, kv_cache_config.num_blocks, word) for r in regions]
        ends = list(accumulate((part.shape[1] for part in self._parts), initial=0))
        self._columns = [slice(start, end) for start, end in pairwise(ends)]
        stage_blocks = max(1, STAGE_BYTES_MAX // (ends[-1] * word.itemsize))
        self._device = self._parts[0].device
        self._on_cuda = self._device.type == "cuda"
        self._stage = torch.empty((stage_blocks, ends[-1]), dtype=word, device=self._device)
        self._host = torch.zeros((host_blocks, ends[-1]), dtype=word)
        if self._on_cuda and host_blocks:
            pin_tensor(self._host)  # in place; torch's own pinned allocations are rounded up to a power of two

    def out(self, pairs: Pairs) -> None:
        for stage, devices, runs in self._chunks(pairs):
            for part, columns in zip(self._parts, self._columns, strict=True):
                stage[:, columns] = part.index_select(0, devices)
            for rows, hosts in runs:
                self._host[hosts].copy_(stage[rows], non_blocking=True)

    def back(self, pairs: Pairs) -> None:
        for stage, devices, runs in self._chunks(pairs):
            for rows, hosts in runs:
                stage[rows].copy_(self._host[hosts], non_blocking=True)
            for part, columns in zip(self._parts, self._columns, strict=True):
                part.index_copy_(0, devices, stage[:, columns])

    def _chunks(self, pairs: Pairs) -> Iterator[tuple[torch.Tensor, torch.Tensor, Iterator[tuple[slice, slice]]]]:
        """As many pairs as the stage holds: its rows for them, their device blocks, their runs on the host.

        The indices go to the device from pinned memory, or the host would wait here for the forward pass before.
        """
        for start in range(0, len(pairs), len(self._stage)):
            devices, hosts = zip(*pairs[start : start + len(self._stage)], strict=True)
            indices = torch.tensor(devices, pin_memory=self._on_cuda).to(self._device, non_blocking=True)
            yield self._stage[: len(hosts)], indices, _runs(hosts)


def _part(cache: torch.Tensor, region: Region, num_blocks: int, word: torch.dtype) -> torch.Tensor:
    """A region as one row a block, whatever shape and dtype the attention backend sees in it."""
    words = region.width // word.itemsize
    view = torch.empty(0, dtype=word, device=cache.device)
    return view.set_(cache.untyped_storage(), region.start // word.itemsize, (num_blocks, words), (words, 1))


def _runs(blocks: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Blocks that lie side by side on the host: their places in the sequence, and on the host."""
    breaks = [row for row in range(1, len(blocks)) if blocks[row] != blocks[row - 1] + 1]
    for start, end in pairwise([0, *breaks, len(blocks)]):
        yield slice(start, end), slice(blocks[start], blocks[start] + end - start)


class SwapConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """vLLM's two ends of the swap, one object each in the scheduler and in every worker.

    `kv_connector_extra_config` has `swap_gib`: host memory of one engine, all its ranks together; 0 swaps nothing.
    It is no SupportsHMA, so vLLM gives models with sliding windows one full group; other caches are refused below.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        refuse_what_cannot_be_swapped(vllm_config, kv_cache_config)
        rank_bytes = sum(region.width for region in regions_of(kv_cache_config))
        block_bytes = vllm_config.parallel_config.tensor_parallel_size * rank_bytes
        self._host_blocks = int(self._kv_transfer_config.kv_connector_extra_config["swap_gib"] * GIB) // block_bytes
        (group,) = kv_cache_config.kv_cache_groups
        self.ledger = SwapLedger(self._host_blocks, group.kv_cache_spec.block_size, block_bytes)
        self._copier: BlockCopier | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """A swap copy is nobody's delivery: output in flight at a preemption is kept, not dropped."""
        return False

    @property
    def usage(self) -> SwapUsage:
        return self.ledger.usage

    def swap_out(self, request: Any) -> bool:
        """To be called within schedule(), right before `_preempt_request(request)`. False: it will be recomputed.

        All that vLLM counts as computed is copied, what the step in flight is writing included. It must be running
        since an earlier step: the blocks of one that this very schedule() admitted are not written yet.
        """
        if request.skip_reading_prefix_cache or request.resumable:
            return False
        (device_blocks,) = self._kv_cache_manager.get_block_ids(request.request_id)
        return self.ledger.take(request.request_id, device_blocks, request.num_computed_tokens)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """One token at least is left to compute, or no next one could be sampled; it also drops rejected drafts."""
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
        """After a change of weights, say: what was computed before must not come back."""
        for request_id in list(self.ledger.held):
            self.ledger.forget(request_id)
        return True

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._copier = BlockCopier(kv_caches, self._kv_cache_config, self._host_blocks)

    def handle_preemptions(self, kv_connector_metadata: SwapMetadata) -> None:
        """vLLM calls this first in every step, one without tokens included."""
        if self._copier is not None:
            self._copier.out(kv_connector_metadata.out)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Before the forward pass in a step that has copies back: vLLM knows them as synchronous loads."""
        if self._copier is not None:
            self._copier.back(self._get_connector_metadata().back)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: the stream orders the load before the layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: only victims are saved."""

    def wait_for_save(self) -> None:
        """Nothing: the stream orders a copy out before whatever overwrites its blocks."""


def refuse_what_cannot_be_swapped(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises ValueError for a cache that is not simply pages of full attention by position, alike on every rank.

    Zeroing and copy on write (hits within a block) are what vLLM's newer runner does before a connector saves blocks.
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
    if refused := [what for what, so in refusals.items() if so]:
        raise ValueError(f"SwapConnector cannot swap {', '.join(refused)}")
