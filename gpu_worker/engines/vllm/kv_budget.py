"""What vLLM has left, as one pass of admissions sees it: blocks and batch slots, counted as vLLM will count them.

Read before `schedule()` gives this step's blocks to those that run, so what they will take is taken off; blocks that a
step in flight may still write are freed late (`deferred_frees`), and are counted as coming: else a second victim would
be evicted for the room that the first one makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request

from gpu_worker.policies.preemption.costs import Eviction
from gpu_worker.policies.preemption.victims import Resident
from gpu_worker.policies.tiers.tiered import TieredQueue


class VllmKvBudget:
    """`scheduler`: vLLM's. `waiting`: a waiting request by its id. `swap_bytes_free`: of the host's pool."""

    def __init__(
        self, scheduler: Any, policy: TieredQueue, waiting: Callable[[str], Request], swap_bytes_free: float
    ) -> None:
        self.swap_bytes_free = swap_bytes_free
        self.admitted: list[str] = []
        """Let in by this pass, as far as it is planned."""
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._policy = policy
        self._waiting = waiting
        self._taken = 0
        self._tokens_taken = 0
        self._found: frozenset[int] = frozenset()
        """Blocks that the one asked about last finds its first tokens in: they are not free for it once their holder
        leaves."""
        self._found_by_admitted: frozenset[int] = frozenset()
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

    def has_tokens(self, without: Sequence[Eviction]) -> bool:
        """Whether the step has any left for one who is let in, after those that run and stay in it."""
        gone = {eviction.resident.request_id for eviction in without}
        running = (request for request in self._scheduler.running if request.request_id not in gone)
        wanted = sum(self._tokens_of(request) for request in running)
        return int(self._scheduler.max_num_scheduled_tokens) > wanted + self._tokens_taken

    def blocks_needed(self, request_id: str) -> int:
        """By vLLM's own arithmetic, prefix hits included."""
        needed, self._found = self._needs(request_id)
        return needed

    def needs_at_most(self, request: Request) -> int:
        """With all that it may generate."""
        tokens = min(request.num_prompt_tokens + request.max_tokens, self._manager.max_model_len)
        return int(cdiv(tokens, self._scheduler.block_size))

    def takes(self, request_id: str) -> None:
        """It is planned to enter."""
        needed, found = self._needs(request_id)
        self._taken += needed
        self._tokens_taken += self._waiting(request_id).num_tokens
        self._found, self._found_by_admitted = frozenset(), self._found_by_admitted | found
        self.admitted.append(request_id)

    def residents(self) -> Iterable[Resident]:
        running = [self._resident(request) for request in self._scheduler.running]
        return running + [self._newcomer(request_id) for request_id in self.admitted]

    def left(self) -> None:
        """Somebody was evicted: it takes nothing in this step, and others take blocks that they would have shared."""
        self._growth = self._to_come()
        self._taken = sum(self._needs(request_id)[0] for request_id in self.admitted)

    def _resident(self, request: Request) -> Resident:
        blocks = [block for group in self._manager.get_blocks(request.request_id).blocks for block in group]
        shared = self._found | self._found_by_admitted
        tier_state = self._policy.tier_state(request.request_id)
        return Resident(
            request.request_id,
            tier_state.tier,
            sum(block.ref_cnt == 1 and not block.is_null and block.block_id not in shared for block in blocks),
            request.num_computed_tokens,
            request.num_output_tokens,
            tier_state.preemptions,
        )

    def _newcomer(self, request_id: str) -> Resident:
        needed, _ = self._needs(request_id)
        tier_state = self._policy.tier_state(request_id)
        return Resident(request_id, tier_state.tier, needed, 0, 0, tier_state.preemptions, entered=True)

    def _needs(self, request_id: str) -> tuple[int, frozenset[int]]:
        """How many, and the blocks of its hits."""
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
        kept_free = manager.watermark_blocks if self._scheduler.running or self.admitted else 0
        return int(blocks + kept_free), frozenset(block.block_id for group in found.blocks for block in group)

    def _tokens_of(self, request: Request) -> int:
        """What one that runs takes of this step, unless the others before it took all."""
        wanted = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        most = self._scheduler.scheduler_config.long_prefill_token_threshold
        return int(min(wanted, most) if most else wanted)

    def _to_come(self) -> int:
        """Blocks that those who run will take in this step."""
        return sum(self._growth_of(request) for request in self._scheduler.running)

    def _growth_of(self, request: Request) -> int:
        held = len(self._manager.get_blocks(request.request_id).blocks[0])
        return max(0, int(cdiv(request.num_tokens_with_spec + 1, self._scheduler.block_size)) - held)
