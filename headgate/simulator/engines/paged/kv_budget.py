"""KV blocks and batch slots of a paged engine: who holds how many, and what is free for whom.

With B blocks in all, R of them reserved for premium, b_i those that resident i holds and m_i the most that it may come
to hold:

    spare       B - sum b_i; for tiers that may not use the reserve less max(0, R - blocks of those whom it is for)
    protected   such a one enters only where the sum of m_i over protected residents and itself is at most B; over
                those that may not use the reserve, at most B - R

Invariant: a protected resident, which may not be evicted, always gets its next block: what its kind may yet come to
need is free or held by others, and these can be evicted. It is not kept free beforehand: blocks for an output of 1,024
tokens, most of which never come, would keep everybody else waiting at the door for as long.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.preemption.admission import RESERVED_FOR
from gpu_worker.policies.preemption.victims import Resident
from gpu_worker.policies.tiers.settings import TierSettings
from gpu_worker.policies.tiers.tiered import TieredQueue
from headgate.simulator.engines.paged.sequence import Sequence
from headgate.simulator.engines.profile import EngineProfile

SLOTS_UNBOUNDED = 1_000_000_000


class PagedKvBudget:
    """The `Room` of admission.py. `sequences`: by request id, waiting and running; the engine's own."""

    def __init__(
        self, profile: EngineProfile, policy: QueuePolicy, settings: TierSettings, sequences: dict[str, Sequence]
    ) -> None:
        self._profile = profile
        self._tiers = policy if isinstance(policy, TieredQueue) else None
        self._settings = settings
        self._sequences = sequences
        self.block_tokens = profile.block_tokens
        self.blocks_total = profile.pool_tokens // profile.block_tokens
        self.watermark = ceil(profile.watermark * self.blocks_total) if profile.watermark else 0
        self.reserve = ceil(settings.premium_reserve * self.blocks_total)
        self.free = self.blocks_total
        self._protected_most = {True: 0, False: 0}
        """Sum of m_i over protected residents, by whether the reserve is for them."""
        self.premium_blocks = 0
        self.swap_bytes_used = 0.0
        self.running: list[Sequence] = []
        self._entered: set[Sequence] = set()
        """In this pass."""

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def begins(self) -> None:
        """A pass."""
        self._entered.clear()

    @property
    def blocks_free(self) -> int:
        """For a newcomer: the watermark is left to those who run."""
        return self.free - (self.watermark if self.running else 0)

    @property
    def slots_free(self) -> int:
        most = self._profile.batch_max
        return SLOTS_UNBOUNDED if most is None else most - len(self.running)

    @property
    def swap_bytes_free(self) -> float:
        return self._profile.swap_bytes - self.swap_bytes_used

    def needs(self, request_id: str) -> int:
        """More than there is for one that could not be kept."""
        sequence = self._sequences[request_id]
        if self._to_be_protected(request_id) and not self._could_keep(sequence):
            return self.blocks_total + 1
        return self.blocks_of(sequence.length)

    def _could_keep(self, sequence: Sequence) -> bool:
        """Whether it will find its blocks however long it and all other protected ones get."""
        for_it = sequence.request.tier in RESERVED_FOR
        outside = self._protected_most[False] + (0 if for_it else sequence.blocks_most)
        inside = self._protected_most[True] + (sequence.blocks_most if for_it else 0)
        return outside + inside <= self.blocks_total and (for_it or outside <= self.blocks_total - self.reserve)

    def residents(self) -> list[Resident]:
        return [replace(sequence.resident(), entered=sequence in self._entered) for sequence in self.running]

    def enter(self, sequence: Sequence) -> None:
        """After the policy admitted it: its place among the others is what it was then."""
        if self._tiers is not None:
            tier_state = self._tiers.tier_state(sequence.request.request_id)
            sequence.rank, sequence.protected = tier_state.rank, tier_state.protected(self._settings)
        if sequence.protected:
            self._protected_most[sequence.request.tier in RESERVED_FOR] += sequence.blocks_most
        self.running.append(sequence)
        self._entered.add(sequence)
        self.grow(sequence, self.blocks_of(sequence.length))

    def grow(self, sequence: Sequence, blocks: int) -> None:
        sequence.blocks += blocks
        self.free -= blocks
        if sequence.request.tier in RESERVED_FOR:
            self.premium_blocks += blocks

    def leave(self, sequence: Sequence) -> None:
        if sequence.protected:
            self._protected_most[sequence.request.tier in RESERVED_FOR] -= sequence.blocks_most
        self.running.remove(sequence)
        self.grow(sequence, -sequence.blocks)
        sequence.protected = False

    def spare(self, tier: Tier) -> int:
        """For one that runs to grow."""
        return self.free if tier in RESERVED_FOR else self.free - max(0, self.reserve - self.premium_blocks)

    def exhausted(self, request_id: str) -> bool:
        """It was preempted as often as may be."""
        return self._tiers is not None and self._tiers.tier_state(request_id).exhausted(self._settings)

    def _to_be_protected(self, request_id: str) -> bool:
        """As its standing will be once it is admitted."""
        if self._tiers is None:
            return False
        tier_state = self._tiers.tier_state(request_id)
        promoted = self._settings.at_limit == "promote" and tier_state.exhausted(self._settings)
        return promoted or self._tiers.shares.owed(tier_state.tier)
