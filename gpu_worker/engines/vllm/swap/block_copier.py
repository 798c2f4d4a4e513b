"""The worker's half of the swap: copies whole KV blocks between device and host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from vllm.v1.simple_kv_offload.cuda_mem_ops import pin_tensor

from gpu_worker.engines.vllm.swap.ledger import Pairs

STAGE_BYTES_MAX = 32 << 20
"""Device memory, beyond what vLLM accounts for, in which a victim's pages are gathered into one copy."""


class Region(NamedTuple):
    """The place of a part of each block: `width` bytes at `start` + index x `width` in the allocation of `layer`."""

    layer: str
    start: int
    width: int


def regions_of(kv_cache_config: Any) -> list[Region]:
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
            pin_tensor(self._host)  # in place: torch rounds its own pinned allocations up to a power of two

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
