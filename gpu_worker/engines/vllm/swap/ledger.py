"""The scheduler's half of the swap: which request owns each host block, and which blocks the next step copies."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

Pairs = Sequence[tuple[int, int]]
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

    out: Pairs = ()
    back: Pairs = ()


class SwapLedger:
    """The scheduler's half: which request owns each host block, and the copies of the next step."""

    def __init__(self, host_blocks: int, block_tokens: int, block_bytes: int) -> None:
        self.held: dict[str, tuple[int, list[int]]] = {}
        """Maps a request's id to the number of its first tokens on the host, and to their host blocks in order."""
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
