"""vLLM's free blocks and batch slots during one pass of admissions, counted as vLLM will count them.

The pass runs before `schedule()` gives this step's blocks to the running requests, so the blocks that they will take do
not count as free. Blocks that a step in flight may still write are freed late (`deferred_frees`); they count as free
already, otherwise a second victim would be preempted for the blocks of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from vllm.utils.math_utils import cdiv
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request, RequestStatus

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm.next_step import NextStep, computes_nothing, loaded_requests
from gpu_worker.policies.admission import RESERVED_FOR, Obstacle
from gpu_worker.policies.fairness.interface import Precedence, QueueRequest
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Resident
from gpu_worker.policies.step_tokens import StepTokens


class MayPass(Protocol):
    def __call__(self, head: QueueRequest, *, lacks_place: bool) -> bool: ...


class VllmKvBudget:
    """`scheduler`: vLLM's. `waiting`: returns a waiting request by its id. `swap_bytes_free`: of the host's pool.
    `may_pass`: whether a waiting request comes before those that wait for an adapter's place (AdapterTurns.may_pass).
    `next_step`: the step that is planned; None while vLLM makes it, and asks whether a request fits by itself."""

    def __init__(
        self,
        scheduler: Any,
        policy: TieredQueue,
        waiting: Callable[[str], Request],
        swap_bytes_free: float,
        may_pass: MayPass,
        next_step: NextStep | None = None,
    ) -> None:
        self.swap_bytes_free = swap_bytes_free
        self.admitted: list[str] = []
        """Requests that this pass has admitted so far."""
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._policy = policy
        self._waiting = waiting
        self._may_pass = may_pass
        self._holders: dict[int, list[str]] | None = None
        """The requests that use each adapter; None after any change of them."""
        self._next_step = next_step
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
            self._growth = self._count_growth()
        deferred = sum(len(blocks) for _, blocks in self._scheduler.deferred_frees)
        return int(self._manager.block_pool.get_num_free_blocks()) + deferred - self._growth - self._blocks_taken

    @property
    def slots_free(self) -> int:
        taken = len(self._scheduler.running) + len(self.admitted) + len(loaded_requests(self._scheduler))
        return int(self._scheduler.max_num_active_reqs) - taken

    @property
    def step_tokens(self) -> StepTokens | None:
        return None if self._next_step is None else self._next_step.tokens

    def obstacle(self, request_id: str) -> Obstacle | None:
        if self._next_step is None:
            return None
        request = self._waiting(request_id)
        if not is_ready(request) or self._waits_for_turn(request):
            return Obstacle.PASSED_OVER
        if not request.has_encoder_inputs:
            return None
        has_room = self._next_step.has_encoder_room(request, self._cached_tokens(request))
        return None if has_room else Obstacle.BLOCKED

    def blocks_needed(self, request_id: str) -> int:
        """Return the blocks by vLLM's own arithmetic, less prefix cache hits."""
        needed, self._hits, _ = self._needs(request_id)
        return needed

    def blocks_needed_max(self, request: Request) -> int:
        """Return the blocks for the prompt and the longest possible output."""
        tokens = min(request.num_prompt_tokens + request.max_tokens, self._manager.max_model_len)
        return int(cdiv(tokens, self._scheduler.block_size))

    def tokens_in(self, blocks: int) -> int:
        """Return the tokens for which so many blocks have room."""
        return int(blocks * self._scheduler.block_size)

    def admit(self, waiting: QueueRequest, precedence: Callable[[str], Precedence | None]) -> None:
        """Take what a request that this pass admits needs of the blocks, slots, tokens and of the encoder.
        `precedence`: of a running prompt over it."""
        request_id = waiting.request_id
        needed, hits, cached = self._needs(request_id)
        if self._next_step is not None:
            request = self._waiting(request_id)
            tokens = self._next_step.tokens.take(request.num_tokens - cached, waiting.tier, precedence)
            self._next_step.admit(request, cached, tokens)
        self._blocks_taken += needed
        self._premium_blocks = None
        self._hits, self._hits_of_admitted = frozenset(), self._hits_of_admitted | hits
        self.admitted.append(request_id)
        self._holders = None

    def note_entered(self, request: Request) -> None:
        """Count the blocks of a request that vLLM has just admitted."""
        if self._premium_blocks is not None and self._policy.tier_state(request.request_id).tier in RESERVED_FOR:
            self._premium_blocks += self._own_blocks(request.request_id)

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        """Return the blocks of running requests of these tiers, and those that this pass admitted will take; one that
        several requests share does not count."""
        if tiers is not RESERVED_FOR:
            return self._blocks_held_by(tiers)
        if self._premium_blocks is None or not self._are_blocks_own:
            self._premium_blocks = self._blocks_held_by(tiers)
        return self._premium_blocks

    def _blocks_held_by(self, tiers: Collection[Tier]) -> int:
        tier_state = self._policy.tier_state
        names = (request.request_id for request in self._scheduler.running)
        held = sum(self._own_blocks(name) for name in names if tier_state(name).tier in tiers)
        return held + sum(self._needs(name)[0] for name in self.admitted if tier_state(name).tier in tiers)

    def residents(self, wanted: Callable[[str], bool]) -> Iterable[Resident]:
        return [self._resident(request) for request in self._scheduler.running if wanted(request.request_id)]

    def adapter_holders(self, request_id: str) -> list[list[str]]:
        """Return, for each loaded adapter, the requests that use it; empty if the request needs no room for its own."""
        config, wanted = self._scheduler.lora_config, self._waiting(request_id).lora_request
        if not config or wanted is None:
            return []
        if self._holders is None:
            self._holders = self._find_holders()
        holders = self._holders
        if wanted.lora_int_id in holders or len(holders) < config.max_loras:
            return []
        return list(holders.values())

    def waits_for_adapter(self, request_id: str) -> bool:
        """Return whether a request lacks the place of its adapter, or waits for one that does."""
        return bool(self.adapter_holders(request_id)) or self._waits_for_turn(self._waiting(request_id))

    def _waits_for_turn(self, request: Request) -> bool:
        if request.lora_request is None:
            return False
        head = self._policy.tier_state(request.request_id).request
        return not self._may_pass(head, lacks_place=bool(self.adapter_holders(request.request_id)))

    def _find_holders(self) -> dict[int, list[str]]:
        holders: dict[int, list[str]] = {}
        for request in (*self._scheduler.running, *map(self._waiting, self.admitted)):
            if request.lora_request is not None:
                holders.setdefault(request.lora_request.lora_int_id, []).append(request.request_id)
        return holders

    def update_after_evictions(self, victims: list[str]) -> None:
        """Count again: victims take no blocks in this step, and newcomers need blocks that they would have shared."""
        if self._next_step is not None:
            self._next_step.release(victims)
        self._growth = self._premium_blocks = self._holders = None
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

    def _cached_tokens(self, request: Request) -> int:
        """Return the tokens of a waiting request that the prefix cache has."""
        return int(self._manager.get_computed_blocks(request)[1])

    def _needs(self, request_id: str) -> tuple[int, frozenset[int], int]:
        """Return how many blocks a waiting request needs, and the blocks and the tokens of its prefix cache hits."""
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
        return int(blocks + kept_free), frozenset(block.block_id for group in hits.blocks for block in group), tokens

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

    def _count_growth(self) -> int:
        """Return the blocks that the running requests will take in this step."""
        held, size, growth = self._block_tables[0], self._scheduler.block_size, 0
        for request in self._scheduler.running:
            lacking = request.num_tokens_with_spec + 1 - len(held.get(request.request_id, ())) * size
            if lacking > 0 and not computes_nothing(request):
                growth += cdiv(lacking, size)
        return growth


def is_ready(request: Request) -> bool:
    """Return False if vLLM would skip the request: its grammar is not compiled, or it still has stale output in flight
    from before its preemption."""
    if request.num_stale_output_tokens and not request.drop_stale_output:
        return False
    if request.status is not RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return True
    return not is_compiling(request) and not isinstance(request.structured_output_request.grammar, Exception)


def is_compiling(request: Request) -> bool:
    """Return whether vLLM compiles the request's grammar now, in another thread."""
    if request.status is not RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return False
    output = request.structured_output_request
    return output is None or output.grammar is None
