"""Swapping in transformers' engine: the library's own copies move a victim's KV blocks to host memory and back.

The library's `OffloadingManager` chooses the victims itself when its cache is full. Here our scheduler chooses, and the
pool may be pageable memory, for machines without a GPU. Copies run on the stream that computes: out before the next
step writes to the blocks, back before the step that reads them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.generation.continuous_batching.cache_allocators import CachePool
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState, RequestStatus

from gpu_worker.engines.copy_rates import LARGE_BYTES, CopyRates, fitted_copy_rates
from gpu_worker.policies.preemption import Eviction, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats


class HostSwap(OffloadingManager):  # type: ignore[misc]
    """Replaces `processor`'s manager. `space_bytes`: host memory, rounded down to whole sectors."""

    def __init__(self, processor: Any, space_bytes: int, counts: SchedulingStats) -> None:
        replaced = processor.offloading_manager
        super().__init__(
            cache=processor.cache,
            scheduler=processor.scheduler,
            cpu_offload_space_gib=0.0,
            safety_threshold=1.0,
            compute_stream=replaced._compute_stream,
            distributed_helper=processor.distributed_helper,
        )
        self._counts = counts
        self._on_cuda = self.cache.device.type == "cuda"
        self._predicted_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}
        self._timing: deque[_Copy] = deque()
        sectors = space_bytes // self.cache.bytes_per_sector
        self._sectors = sectors
        if sectors:
            self._make_pool(sectors)

    @property
    def total_bytes(self) -> float:
        return float(self._sectors * self.cache.bytes_per_sector)

    @property
    def free_bytes(self) -> float:
        """Free bytes in whole sectors: any request can use those."""
        if self._cpu_pool is None:
            return 0.0
        self._cpu_pool.try_to_free_sectors()
        return float(self._cpu_pool.num_free_sectors * self.cache.bytes_per_sector)

    @property
    def used_bytes(self) -> float:
        return self.total_bytes - self.free_bytes

    @property
    def bytes_per_token(self) -> float:
        return float(
            sum(
                allocator.bytes_per_block / allocator.tokens_per_page
                for allocator in self.cache.cache_allocators.values()
            )
        )

    def out(self, state: RequestState, eviction: Eviction) -> bool:
        """Copy the request's blocks to the host and free them. False: the host has no space, and nothing changed."""
        request_id = state.request_id
        tables = {
            name: list(allocator.block_table.get(request_id, ()))
            for name, allocator in self.cache.cache_allocators.items()
        }
        copy = self._begin_copy(request_id)
        if not self._offload_to_cpu([state], {request_id: tables}):
            return False
        copy.timer.end()
        self.cache.free_blocks(request_id, no_cache=True)
        self._timing.append(copy)
        self._predicted_s[request_id] = eviction.predicted_s
        self._counts.swapped_out_bytes += self._bytes_of(tables)
        if state.status == RequestStatus.DECODING:
            state.remaining_prefill_tokens = list(state.tokens_to_process)
        state.allocated_blocks = 0
        state._status = RequestStatus.PENDING  # past the setter, which would set its start time
        return True

    def restore_scheduled_requests(self, requests_in_batch: list[Any]) -> None:
        """Copy blocks back, and time it. The library calls this before each step."""
        back = [future.state for future in requests_in_batch if future.state.is_cpu_offloaded]
        copies = [self._begin_copy(state.request_id, share=1 / len(back)) for state in back]
        for state in back:
            self._counts.swapped_in_bytes += self._bytes_of(self._request_id_to_cpu_blocks[state.request_id])
        super().restore_scheduled_requests(requests_in_batch)
        for copy in copies:
            copy.timer.end()
            self._counts.resumed += 1
        self._timing.extend(copies)
        for copy in copies:
            copy.last = True

    def free_request_cpu_cache(self, state: RequestState) -> None:
        super().free_request_cpu_cache(state)
        self._predicted_s.pop(state.request_id, None)
        self._seen_s.pop(state.request_id, None)

    def note_copies(self) -> None:
        """Record finished copies with their predicted costs."""
        while self._timing and (seconds := self._timing[0].seconds()) is not None:
            copy = self._timing.popleft()
            if copy.request_id in self._predicted_s:
                self._seen_s[copy.request_id] = self._seen_s.get(copy.request_id, 0.0) + seconds
                if copy.last:
                    predicted_s = self._predicted_s.pop(copy.request_id)
                    measured_s = self._seen_s.pop(copy.request_id)
                    self._counts.record_cost(Strategy.SWAP, predicted_s=predicted_s, measured_s=measured_s)

    def measured_rates(self) -> CopyRates | None:
        """Measure this manager's own copies, on free blocks, while the engine is idle. None: no space for one block.

        These copies gather and scatter blocks, which a plain copy of as many bytes does not. With a GPU the link is the
        slow part; on a CPU gathering makes them many times slower than a plain copy.
        """
        block_bytes = sum(allocator.bytes_per_block for allocator in self.cache.cache_allocators.values())
        most = min(LARGE_BYTES, int(self.free_bytes)) // block_bytes
        blocks = min(most, int(self.cache.num_blocks) - 1)
        if blocks < 1:
            return None
        sizes = sorted({max(1, blocks // part) * block_bytes for part in (32, 16, 8, 4, 2, 1)})
        return fitted_copy_rates(sizes, lambda size: self._there_and_back(size // block_bytes), self.cache.device.type)

    def _there_and_back(self, blocks: int) -> tuple[Callable[[], None], Callable[[], None]]:
        idle = RequestState("", [])
        tables = {name: list(range(blocks)) for name in self.cache.cache_allocators}

        def back() -> None:
            for allocator in self.cache.cache_allocators.values():
                allocator.block_table[""] = list(range(blocks))
            super(HostSwap, self).restore_scheduled_requests([FutureRequestState(idle, False, {}, 0)])
            for allocator in self.cache.cache_allocators.values():
                del allocator.block_table[""]

        return partial(self._offload_to_cpu, [idle], {"": tables}), back

    def _begin_copy(self, request_id: str, share: float = 1.0) -> _Copy:
        timer = _StreamTimer(self._compute_stream) if self._on_cuda else _HostTimer()
        return _Copy(request_id, timer, share)

    def _make_pool(self, sectors: int) -> None:
        cache = self.cache
        self._cpu_tensor = torch.empty(sectors * cache.bytes_per_sector, dtype=torch.uint8, pin_memory=self._on_cuda)
        self._cpu_pool = CachePool(sectors, len(cache.cache_allocators), num_reserved_sectors=0)
        for name, allocator in cache.cache_allocators.items():
            self._cpu_pool.set_blocks_per_sector(allocator.index, allocator.blocks_per_sector)
            self._cpu_views[name] = self._cpu_tensor.view(-1, allocator.bytes_per_block)

    def _bytes_of(self, tables: dict[str, list[int]]) -> float:
        return float(
            sum(len(blocks) * self.cache.cache_allocators[name].bytes_per_block for name, blocks in tables.items())
        )


class _HostTimer:
    """Times copies that have ended when the call returns."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._duration_s = 0.0

    def end(self) -> None:
        self._duration_s = time.perf_counter() - self._began_s

    def seconds(self) -> float | None:
        return self._duration_s


class _StreamTimer:
    """Times the work that is put on `stream` until `end`, without waiting for it. The library copies on the stream that
    computes, which is not the current one of the thread: there, two events would have nothing between them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._began, self._ended = _event(), _event()
        self._began.record(stream)

    def end(self) -> None:
        self._ended.record(self._stream)

    def seconds(self) -> float | None:
        return float(self._began.elapsed_time(self._ended)) * 1e-3 if self._ended.query() else None


@dataclass(slots=True)
class _Copy:
    """A copy of one request's blocks. `share`: its part of what the timer measures. `last`: it brings them back."""

    request_id: str
    timer: _HostTimer | _StreamTimer
    share: float = 1.0
    last: bool = False

    def seconds(self) -> float | None:
        """Return the time of the copy; None while it runs."""
        seconds = self.timer.seconds()
        return None if seconds is None else seconds * self.share


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
