"""The modelled engine's batch: who is in it, what room it has, and what becomes of those who are evicted.

KV tokens are blocks of one. A request holds its prompt and all that it may generate, so nothing that runs ever lacks
room. It cannot swap: who is evicted is dropped, or computes its prompt and what it had generated again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import Dropped, EngineError, EngineEvent, EngineRequest, FinishReason
from gpu_worker.engines.policy_stats import scheduling_now
from gpu_worker.engines.text import StopMatcher
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.preemption.admission import Admission
from gpu_worker.policies.preemption.costs import Calibration, Eviction, Strategy
from gpu_worker.policies.preemption.victims import Resident
from gpu_worker.policies.scheduling_stats import SchedulingFigures, SchedulingNow


@dataclass(frozen=True, slots=True)
class Shape:
    """`kv_tokens`: the pool; `batch`: most requests at once; `context_tokens`: most of one request."""

    kv_tokens: int = 16_384
    batch: int = 8
    context_tokens: int = 4096


@dataclass(eq=False, slots=True)
class Sequence:
    """`predicted_s`: what its last eviction was thought to cost, while it waits to be computed again."""

    request: EngineRequest
    input_tokens: int
    events: asyncio.Queue[EngineEvent | EngineError]
    stops: StopMatcher
    output_tokens: int = 0
    preemptions: int = 0
    predicted_s: float = 0.0
    reason: FinishReason | None = None

    @property
    def kv_reserved(self) -> int:
        return self.input_tokens + self.request.max_tokens

    @property
    def kv_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def resident(self) -> Resident:
        return Resident(
            self.request.request_id,
            self.request.tier,
            blocks=self.kv_reserved,
            kv_tokens=self.kv_tokens,
            generated=self.output_tokens,
            preemptions=self.preemptions,
        )


class Batch:
    """Plays the passes of `Admission`, and is its `Room`. `sequences`: all that the engine has, by request id."""

    def __init__(
        self, policy: QueuePolicy, shape: Shape, calibration: Calibration, sequences: dict[str, Sequence]
    ) -> None:
        self.admission = Admission(policy, calibration)
        self.figures = SchedulingFigures()
        self._policy = policy
        self._shape = shape
        self._sequences = sequences
        self._running: dict[str, Sequence] = {}
        self._just_in: set[str] = set()

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._running.values()))

    @property
    def kv_tokens(self) -> int:
        """In use, of those that are held."""
        return sum(sequence.kv_tokens for sequence in self._running.values())

    def expired(self, now_s: float) -> list[str]:
        """Whose deadline has passed, each once: they are to be aborted."""
        self.admission.begins(now_s)
        found = self.admission.expired()
        self.figures.expired += len(found)
        return found

    def fill(self, now_s: float) -> int:
        """One pass. Returns the tokens to be prefilled for those who entered."""
        self._just_in.clear()
        self.admission.begins(now_s)
        tokens = 0
        while (plan := self.admission.next(self)) is not None:
            for eviction in plan.evictions:
                self._evict(eviction)
            tokens += self._enter(plan.request.request_id)
        return tokens

    def leave(self, sequence: Sequence) -> None:
        """It is done, or aborted."""
        del self._running[sequence.request.request_id]
        self._policy.finish(sequence.request.request_id)

    def now(self) -> SchedulingNow:
        running = Counter(sequence.request.tier for sequence in self._running.values())
        blocks: Counter[Tier] = Counter()
        for sequence in self._running.values():
            blocks[sequence.request.tier] += sequence.kv_reserved
        return scheduling_now(
            self.admission,
            running=dict(running),
            blocks=dict(blocks),
            blocks_total=self.blocks_total,
            pool_tokens=self._shape.kv_tokens,
            context_tokens=self._shape.context_tokens,
        )

    # What `Admission` asks of its room.

    @property
    def blocks_total(self) -> int:
        return self._shape.kv_tokens

    @property
    def blocks_free(self) -> int:
        return self._shape.kv_tokens - sum(sequence.kv_reserved for sequence in self._running.values())

    @property
    def slots_free(self) -> int:
        return self._shape.batch - len(self._running)

    @property
    def swap_bytes_free(self) -> float:
        return 0.0

    def needs(self, request_id: str) -> int:
        return self._sequences[request_id].kv_reserved

    def residents(self) -> list[Resident]:
        """Without those who end with this step: they make room by themselves."""
        return [
            replace(sequence.resident(), entered=request_id in self._just_in)
            for request_id, sequence in self._running.items()
            if sequence.reason is None
        ]

    def _enter(self, request_id: str) -> int:
        sequence = self._sequences[request_id]
        self._policy.admit(request_id)
        self._running[request_id] = sequence
        self._just_in.add(request_id)
        if sequence.preemptions:
            again_s = self.admission.calibration.prefill_s(sequence.kv_tokens)
            self.figures.resumed += 1
            self.figures.recomputed_tokens += sequence.kv_tokens
            self.figures.cost(Strategy.RECOMPUTE, predicted_s=sequence.predicted_s, measured_s=again_s)
        return sequence.kv_tokens

    def _evict(self, eviction: Eviction) -> None:
        sequence = self._running.pop(eviction.resident.request_id)
        self.figures.evicted(eviction)
        if eviction.strategy is Strategy.DROP:
            self._policy.finish(sequence.request.request_id)
            del self._sequences[sequence.request.request_id]
            sequence.events.put_nowait(Dropped(exhausted=eviction.exhausted))
        else:
            self._policy.preempt(sequence.request.request_id)
            sequence.preemptions += 1
            sequence.predicted_s = eviction.predicted_s
