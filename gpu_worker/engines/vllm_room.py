"""What vLLM has left, as one pass of admissions sees it: blocks and batch slots, counted as vLLM will count them.

Read before `schedule()` gives this step's blocks to those that run, so what they will take is taken off; blocks that a
step in flight may still write are freed late (`deferred_frees`), and are counted as coming: else a second victim would
be evicted for the room that the first one makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request

from gpu_worker.policies.preemption import Resident
from gpu_worker.policies.tiered import TieredQueue


class VllmRoom:
    """`scheduler`: vLLM's. `waiting`: a waiting request by its id. `swap_bytes_free`: of the host's pool."""

    def __init__(
        self, scheduler: Any, policy: TieredQueue, waiting: Callable[[str], Request], swap_bytes_free: float
    ) -> None:
        self.swap_bytes_free = swap_bytes_free
        self.admitted: list[str] = []
        """Let in by this pass, as far as it is planned."""
        self.tokens_left = scheduler.max_num_scheduled_tokens
        """Of the step: prompts beyond it would not be computed in it anyway."""
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._policy = policy
        self._waiting = waiting
        self._taken = 0
        self._growth = self._to_come()

    @property
    def blocks_total(self) -> int:
        return int(self._manager.block_pool.num_gpu_blocks) - 1  # one block is vLLM's own, for padding

    @property
    def blocks_free(self) -> int:
        coming = sum(len(blocks) for _, blocks in self._scheduler.deferred_frees)
        return int(self._manager.block_pool.get_num_free_blocks()) + coming - self._growth - self._taken

    @property
    def slots_free(self) -> int:
        return int(self._scheduler.max_num_active_reqs) - len(self._scheduler.running) - len(self.admitted)

    def needs(self, request_id: str) -> int:
        """By vLLM's own arithmetic, prefix hits included."""
        request, manager = self._waiting(request_id), self._manager
        found, tokens, _ = manager.get_computed_blocks(request)
        whole = min(request.num_tokens, manager.max_model_len)
        blocks = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request_id,
            num_tokens=whole,
            new_computed_blocks=found.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=tokens,
            num_local_computed_tokens=tokens,
            num_tokens_main_model=whole,
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return int(blocks + manager.watermark_blocks)

    def takes(self, request_id: str) -> None:
        """It is planned to enter."""
        self._taken += self.needs(request_id)
        self.tokens_left -= self._waiting(request_id).num_tokens
        self.admitted.append(request_id)

    def residents(self) -> Iterable[Resident]:
        running = [self._resident(request) for request in self._scheduler.running]
        return running + [self._newcomer(request_id) for request_id in self.admitted]

    def left(self) -> None:
        """Somebody was evicted: what it would have taken in this step it does not take."""
        self._growth = self._to_come()

    def _resident(self, request: Request) -> Resident:
        blocks = [block for group in self._manager.get_blocks(request.request_id).blocks for block in group]
        standing = self._policy.standing(request.request_id)
        return Resident(
            request.request_id,
            standing.tier,
            sum(1 for block in blocks if block.ref_cnt == 1 and not block.is_null),
            request.num_computed_tokens,
            request.num_output_tokens,
            standing.preemptions,
        )

    def _newcomer(self, request_id: str) -> Resident:
        standing = self._policy.standing(request_id)
        return Resident(request_id, standing.tier, self.needs(request_id), 0, 0, standing.preemptions, entered=True)

    def _to_come(self) -> int:
        """Blocks that those who run will take in this step."""
        return sum(self._growth_of(request) for request in self._scheduler.running)

    def _growth_of(self, request: Request) -> int:
        held = len(self._manager.get_blocks(request.request_id).blocks[0])
        return max(0, int(cdiv(request.num_tokens_with_spec + 1, self._scheduler.block_size)) - held)
