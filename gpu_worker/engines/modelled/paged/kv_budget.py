"""KV blocks and batch slots of the paged model: how many each sequence holds, and how many are free for which tier.

With B blocks in all, R of them reserved for premium, b_i the blocks that running sequence i holds and m_i the most that
it may come to hold:

    spare       B - sum b_i; for tiers that may not use the reserve less max(0, R - blocks held by tiers that may)
    protected   a protected sequence enters only if the sum of m_i over the protected ones and itself is at most B; if
                its tier may not use the reserve, the sum over such tiers is at most B - R

Invariant: a protected sequence, which may not be evicted, always gets its next block: the blocks that protected
sequences may still need are free, or held by sequences that can be evicted. They are not kept free beforehand: blocks
for an output of 1,024 tokens, most of which never come, would keep all other requests waiting for as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.modelled.paged.profile import PagedProfile
from gpu_worker.policies.admission import RESERVED_FOR, Admission, Obstacle
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Resident
from gpu_worker.policies.step_tokens import StepTokens


@dataclass(slots=True, eq=False)
class PagedSequence:
    """A request in the paged model: its length, its progress, and the KV blocks that it holds.

    `prompt`: prompt tokens, with those that the server adds. `output`: tokens after which the sequence ends, at
    least 1. `blocks_most`: the most blocks that it may come to hold. `left`: tokens of prompt and output so far that
    must be computed before the sequence decodes.

    `tokens`: output tokens so far. `rank`, `protected`: the policy's rank at admission, and whether it may be evicted.
    `prefix`: the keys of its prompt's whole blocks in the prefix cache. `cached`: prompt tokens that its first
    admission found there. `adapter`: its LoRA adapter. `loads`: how often the adapter was loaded for it.

    `lost`: computed tokens that its eviction threw away; `predicted_s`: what computing them again was predicted to
    take, None where the engine evicted natively. `swap_bytes`: its KV in host memory. `ready_s`: when the copy back
    ends.
    """

    request: QueueRequest
    prompt: int
    output: int
    blocks_most: int
    left: int
    tokens: int = 0
    blocks: int = 0
    preemptions: int = 0
    exhausted: bool = False
    protected: bool = False
    rank: float = 0.0
    lost: int = 0
    predicted_s: float | None = None
    swap_bytes: float = 0.0
    ready_s: float = 0.0
    prefix: Sequence[Hashable] = ()
    cached: int = 0
    adapter: str | None = None
    loads: int = 0

    @property
    def length(self) -> int:
        """Prompt and output tokens so far."""
        return self.prompt + self.tokens

    @property
    def held(self) -> int:
        """Tokens in the KV cache. The last output token counts before the step that computes it, as in the other
        engines."""
        return self.prompt + self.tokens - self.left

    @property
    def ended(self) -> bool:
        return self.tokens >= self.output

    def resident(self) -> Resident:
        return Resident(
            self.request.request_id, self.request.tier, self.blocks, self.held, self.tokens, self.preemptions
        )


_SLOTS_UNBOUNDED = 1_000_000_000


class PagedKvBudget:
    """The admission's `KvBudget`. `sequences`: the batch's own, waiting and running, by request id."""

    def __init__(self, profile: PagedProfile, admission: Admission, sequences: Mapping[str, PagedSequence]) -> None:
        self._profile = profile
        self._tiers = admission.policy if isinstance(admission.policy, TieredQueue) else None
        self._settings = admission.settings
        self._sequences = sequences
        self.block_tokens = profile.block_tokens
        self.blocks_total = profile.pool_tokens // profile.block_tokens
        self.watermark = ceil(profile.watermark * self.blocks_total) if profile.watermark else 0
        self.reserve = ceil(self._settings.premium_reserve * self.blocks_total)
        self.free = self.blocks_total
        self._protected_most = {True: 0, False: 0}
        """Sum of m_i over protected sequences, by whether their tier may use the reserve."""
        self.step_tokens: StepTokens | None = None
        """The tokens of the step that is being planned."""
        self._held: Counter[Tier] = Counter()
        """Blocks held by each tier."""
        self.swap_bytes_used = 0.0
        self.running: list[PagedSequence] = []
        self._entered: set[PagedSequence] = set()
        """Sequences admitted in the current pass."""
        self.holders: Callable[[str], Sequence[Sequence[str]]] = lambda _: ()
        """What `adapter_holders` returns (adapters.py)."""

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def begin_pass(self, step_tokens: StepTokens) -> None:
        self.step_tokens = step_tokens
        self._entered.clear()

    @property
    def blocks_free(self) -> int:
        """Free blocks for a newcomer: the watermark is left to running sequences."""
        return self.free - (self.watermark if self.running else 0)

    @property
    def slots_free(self) -> int:
        most = self._profile.batch_max
        return _SLOTS_UNBOUNDED if most is None else most - len(self.running)

    @property
    def swap_bytes_free(self) -> float:
        return self._profile.swap_bytes - self.swap_bytes_used

    def blocks_needed(self, request_id: str) -> int:
        """Return the blocks that a waiting request takes to enter; more than there are if it must wait for protected
        ones."""
        sequence = self._sequences[request_id]
        if self._will_be_protected(request_id) and not self._could_keep(sequence):
            return self.blocks_total + 1
        return self._entry_blocks(sequence)

    def _entry_blocks(self, sequence: PagedSequence) -> int:
        return sequence.blocks_most if self._profile.reserve_outputs else self.blocks_of(sequence.length)

    def _could_keep(self, sequence: PagedSequence) -> bool:
        """Return whether the sequence finds its blocks however long it and all other protected sequences get."""
        in_reserve = sequence.request.tier in RESERVED_FOR
        outside = self._protected_most[False] + (0 if in_reserve else sequence.blocks_most)
        inside = self._protected_most[True] + (sequence.blocks_most if in_reserve else 0)
        return outside + inside <= self.blocks_total and (in_reserve or outside <= self.blocks_total - self.reserve)

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        return sum(self._held[tier] for tier in tiers)

    def obstacle(self, request_id: str) -> Obstacle | None:
        return None

    def adapter_holders(self, request_id: str) -> Sequence[Sequence[str]]:
        """See KvBudget."""
        return self.holders(request_id)

    def residents(self, wanted: Callable[[str], bool]) -> list[Resident]:
        old = (sequence for sequence in self.running if sequence not in self._entered)
        return [sequence.resident() for sequence in old if wanted(sequence.request.request_id)]

    def enter(self, sequence: PagedSequence) -> None:
        """Add a sequence that the policy has just admitted; it keeps the rank of this admission while it runs."""
        if self._tiers is not None:
            tier_state = self._tiers.tier_state(sequence.request.request_id)
            sequence.rank, sequence.protected = tier_state.rank, tier_state.protected(self._settings)
        if sequence.protected:
            self._protected_most[sequence.request.tier in RESERVED_FOR] += sequence.blocks_most
        self.running.append(sequence)
        self._entered.add(sequence)
        self.grow(sequence, self._entry_blocks(sequence))

    def grow(self, sequence: PagedSequence, blocks: int) -> None:
        sequence.blocks += blocks
        self.free -= blocks
        self._held[sequence.request.tier] += blocks

    def leave(self, sequence: PagedSequence) -> None:
        if sequence.protected:
            self._protected_most[sequence.request.tier in RESERVED_FOR] -= sequence.blocks_most
        self.running.remove(sequence)
        self.grow(sequence, -sequence.blocks)
        sequence.protected = False

    def spare(self, tier: Tier) -> int:
        """Return the blocks by which a running sequence of this tier can grow."""
        return (
            self.free if tier in RESERVED_FOR else self.free - max(0, self.reserve - self.blocks_held_by(RESERVED_FOR))
        )

    def exhausted(self, request_id: str) -> bool:
        """Return whether the request was preempted as often as the settings allow."""
        return self._tiers is not None and self._tiers.tier_state(request_id).exhausted(self._settings)

    def _will_be_protected(self, request_id: str) -> bool:
        """Return whether the sequence will be protected once it is admitted."""
        if self._tiers is None:
            return False
        tier_state = self._tiers.tier_state(request_id)
        promoted = self._settings.at_limit == "promote" and tier_state.exhausted(self._settings)
        return promoted or self._tiers.shares.is_owed(tier_state.tier)
