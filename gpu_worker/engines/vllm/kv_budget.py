"""vLLM's free blocks and batch slots during one pass of admissions, counted as vLLM will count them.

The pass runs before `schedule()` gives this step's blocks to the running requests, so the blocks that they will take do
not count as free. Blocks that a step in flight may still write are freed late (`deferred_frees`); they count as free
already, otherwise a second victim would be preempted for the blocks of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.admission import RESERVED_FOR
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Resident


class VllmKvBudget:
    """`scheduler`: vLLM's. `waiting`: returns a waiting request by its id. `swap_bytes_free`: of the host's pool."""

    def __init__(
        self, scheduler: Any, policy: TieredQueue, waiting: Callable[[str], Request], swap_bytes_free: float
    ) -> None:
        self.swap_bytes_free = swap_bytes_free
        self.admitted: list[str] = []
        """Requests that this pass has admitted so far."""
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._policy = policy
        self._waiting = waiting
        self._blocks_taken = 0
        self._hits: frozenset[int] = frozenset()
        """Prefix cache hits of the request of the last `blocks_needed`. It shares these blocks, so preempting their
        holder does not free them for it."""
        self._hits_of_admitted: frozenset[int] = frozenset()
        managers = self._manager.coordinator.single_type_managers
        self._block_tables = [kv_manager.req_to_blocks for kv_manager in managers]
        self._are_blocks_own = not self._manager.enable_caching and all(
            type(one) is FullAttentionManager for one in managers
        )
        """Whether each block in a request's table is its own: none is shared, and none a placeholder."""
        self._growth: int | None = None
        """What the running requests will take in this step; counted when it is first needed."""
        self._premium_blocks: int | None = None

    @property
    def blocks_total(self) -> int:
        return int(self._manager.block_pool.num_gpu_blocks) - 1  # vLLM keeps one block for padding

    @property
    def blocks_free(self) -> int:
        if self._growth is None:
            self._growth = sum(map(self._growth_of, self._scheduler.running))
        deferred = sum(len(blocks) for _, blocks in self._scheduler.deferred_frees)
        return int(self._manager.block_pool.get_num_free_blocks()) + deferred - self._growth - self._blocks_taken

    @property
    def slots_free(self) -> int:
        return int(self._scheduler.max_num_active_reqs) - len(self._scheduler.running) - len(self.admitted)

    def blocks_needed(self, request_id: str) -> int:
        """Return the blocks by vLLM's own arithmetic, less prefix cache hits."""
        needed, self._hits = self._needs(request_id)
        return needed

    def blocks_needed_max(self, request: Request) -> int:
        """Return the blocks for the prompt and the longest possible output."""
        tokens = min(request.num_prompt_tokens + request.max_tokens, self._manager.max_model_len)
        return int(cdiv(tokens, self._scheduler.block_size))

    def tokens_in(self, blocks: int) -> int:
        """Return the tokens for which so many blocks have room."""
        return int(blocks * self._scheduler.block_size)

    def admit(self, request_id: str) -> None:
        """Take the blocks and the slot of a request that this pass admits."""
        needed, hits = self._needs(request_id)
        self._blocks_taken += needed
        self._premium_blocks = None
        self._hits, self._hits_of_admitted = frozenset(), self._hits_of_admitted | hits
        self.admitted.append(request_id)

    def note_entered(self, request: Request) -> None:
        """Count the blocks of a request that vLLM has just admitted."""
        if self._premium_blocks is not None and self._policy.tier_state(request.request_id).tier in RESERVED_FOR:
            self._premium_blocks += self._own_blocks(request.request_id)

    @property
    def premium_blocks(self) -> int:
        if self._premium_blocks is None or not self._are_blocks_own:
            newcomers = [name for name in self.admitted if self._policy.tier_state(name).tier in RESERVED_FOR]
            taken = sum(self._needs(request_id)[0] for request_id in newcomers)
            self._premium_blocks = self.blocks_held_by(RESERVED_FOR) + taken
        return self._premium_blocks

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        """Return the blocks of running requests of these tiers; one that several requests share does not count."""
        tier_state = self._policy.tier_state
        names = (request.request_id for request in self._scheduler.running)
        return sum(self._own_blocks(name) for name in names if tier_state(name).tier in tiers)

    def residents(self, wanted: Callable[[str], bool]) -> Iterable[Resident]:
        return [self._resident(request) for request in self._scheduler.running if wanted(request.request_id)]

    def adapter_holders(self, request_id: str) -> list[list[str]]:
        """Return, for each loaded adapter, the requests that use it; empty if the request needs no room for its own."""
        config, wanted = self._scheduler.lora_config, self._waiting(request_id).lora_request
        if not config or wanted is None:
            return []
        holders: dict[int, list[str]] = {}
        for request in (*self._scheduler.running, *map(self._waiting, self.admitted)):
            if request.lora_request is not None:
                holders.setdefault(request.lora_request.lora_int_id, []).append(request.request_id)
        if wanted.lora_int_id in holders or len(holders) < config.max_loras:
            return []
        return list(holders.values())

    def update_after_evictions(self) -> None:
        """Count again: victims take no blocks in this step, and newcomers need blocks that they would have shared."""
        self._growth = self._premium_blocks = None
        self._blocks_taken = sum(self._needs(request_id)[0] for request_id in self.admitted)

    def _resident(self, request: Request) -> Resident:
        tier_state = self._policy.tier_state(request.request_id)
        return Resident(
            request.request_id,
            tier_state.tier,
            self._own_blocks(request.request_id),
            request.num_computed_tokens,
            request.num_output_tokens,
            tier_state.preemptions,
        )

    def _needs(self, request_id: str) -> tuple[int, frozenset[int]]:
        """Return how many blocks a waiting request needs, and the blocks of its prefix cache hits."""
        request, manager = self._waiting(request_id), self._manager
        hits, tokens, _ = manager.get_computed_blocks(request)
        whole = min(request.num_tokens, manager.max_model_len)
        blocks = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request_id,
            num_tokens=whole,
            new_computed_blocks=hits.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=tokens,
            num_local_computed_tokens=tokens,
            num_tokens_main_model=whole,
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        kept_free = manager.watermark_blocks if self._scheduler.running or self.admitted else 0
        return int(blocks + kept_free), frozenset(block.block_id for group in hits.blocks for block in group)

    def cached_tokens(self, request_id: str) -> int:
        """Return how many tokens of a waiting request are in the prefix cache now."""
        return int(self._manager.get_computed_blocks(self._waiting(request_id))[1])

    def _own_blocks(self, request_id: str) -> int:
        """Return the blocks that an eviction of the request frees for the request of the last `blocks_needed`."""
        tables = [table.get(request_id, ()) for table in self._block_tables]
        if self._are_blocks_own:
            return sum(map(len, tables))
        blocks = (block for table in tables for block in table)
        shared = self._hits | self._hits_of_admitted
        return sum(block.ref_cnt == 1 and not block.is_null and block.block_id not in shared for block in blocks)

    def _growth_of(self, request: Request) -> int:
        """Return the blocks that a running request will take in this step."""
        held = len(self._block_tables[0].get(request.request_id, ()))
        return max(0, int(cdiv(request.num_tokens_with_spec + 1, self._scheduler.block_size)) - held)
