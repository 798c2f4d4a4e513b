"""One pass of admissions: who enters the batch now, and who leaves it for that.

An adapter asks again and again until nobody more can enter, and does what it is told in between:

    admission.begin_pass(now_s)
    while (plan := admission.next_plan(room)) is not None:
        evict plan.evictions, each by its strategy      policy.preempt, or policy.finish for one that is dropped
        let plan.request in                             policy.admit

The first of the policy's order that does not fit ends the pass (VTC, Algorithm 2, line 22): whoever is passed over so
that room can gather for it would wait the longer. But a block reserved for premium is nothing that anybody else waits
for: where a request does not fit beside the reserve, those that may use the reserve go on. Nor does anybody wait for
what a later one makes for itself: one that evicts all that it needs goes on too, and takes nothing of the room that
gathers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.preemption.costs import UNCALIBRATED, Calibration, Eviction, Strategy, cheapest, costs_s
from gpu_worker.policies.preemption.victims import Resident, Shortage, choose_victims
from gpu_worker.policies.request import QueueRequest
from gpu_worker.policies.tiers.settings import TierSettings
from gpu_worker.policies.tiers.tiered import TieredQueue

RESERVED_FOR = frozenset({Tier.PREMIUM, Tier.SYSTEM})


class KvBudget(Protocol):
    """What the engine has, as of now: it changes as its adapter evicts and admits."""

    @property
    def blocks_total(self) -> int: ...

    @property
    def blocks_free(self) -> int:
        """Those that are being freed, and will be free before they are needed, are counted."""
        ...

    @property
    def slots_free(self) -> int: ...

    @property
    def swap_bytes_free(self) -> float: ...

    def blocks_needed(self, request_id: str) -> int:
        """Blocks that a waiting request takes to enter."""
        ...

    def residents(self) -> Iterable[Resident]:
        """Who runs; those that this pass admitted say that they `entered`, or they fill the reserve unseen."""
        ...


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    request: QueueRequest
    evictions: tuple[Eviction, ...] = ()


class Admission:
    """`settings`: of its tiers, where the policy has them. `calibration` may be replaced once it was measured."""

    def __init__(self, policy: QueuePolicy, calibration: Calibration = UNCALIBRATED) -> None:
        self.policy = policy
        self.calibration = calibration
        self.settings = policy.settings if isinstance(policy, TieredQueue) else TierSettings(preemption=False)
        self._now_s = 0.0
        self._deadlines: list[tuple[float, str]] = []
        self._deadline_of: dict[str, float] = {}
        """An id may come again: what was said of it last holds."""

    def enqueue(self, request: QueueRequest, now_s: float) -> bool:
        """As the policy's own; the deadline is watched from here on."""
        if not self.policy.enqueue(request, now_s):
            return False
        self._deadline_of.pop(request.request_id, None)
        if request.deadline_s < inf:
            heappush(self._deadlines, (request.deadline_s, request.request_id))
            self._deadline_of[request.request_id] = request.deadline_s
        return True

    def begin_pass(self, now_s: float) -> None:
        self._now_s = now_s
        self.policy.advance_to(now_s)

    def pop_expired(self) -> list[str]:
        """Requests here whose deadline has passed, waiting or running, each once: nothing they get is of use."""
        found: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= self._now_s:
            deadline_s, request_id = heappop(self._deadlines)
            if self._deadline_of.get(request_id) != deadline_s:
                continue
            del self._deadline_of[request_id]
            if self.policy.holds(request_id):
                found.append(request_id)
        return found

    def preemptions(self, request_id: str) -> int:
        """So far, of a request that is here."""
        return self.policy.tier_state(request_id).preemptions if isinstance(self.policy, TieredQueue) else 0

    def blocks_max(self, tier: Tier, blocks_total: int) -> int:
        """The most that a request of this tier can ever have."""
        return blocks_total - (0 if tier in RESERVED_FOR else self._reserve(blocks_total))

    def next_plan(self, room: KvBudget) -> AdmissionPlan | None:
        """Who enters now; None ends the pass. Changes nothing."""
        kept_out = waits_for_room = False
        for head in self.policy.heads():
            if kept_out and head.tier not in RESERVED_FOR:
                continue
            shortage = _all_of_it(head, room) if waits_for_room else self._shortage(head, room)
            if shortage.none:
                return AdmissionPlan(head)
            if (evictions := self._evictions(head, shortage, room)) is not None:
                return AdmissionPlan(head, evictions)
            kept_out = shortage.slots <= 0 and self._only_the_reserve_is_free(head, room)
            waits_for_room = not kept_out
        return None

    def _shortage(self, head: QueueRequest, room: KvBudget) -> Shortage:
        free = room.blocks_free - (0 if head.tier in RESERVED_FOR else self._reserved_still(room))
        return Shortage(room.blocks_needed(head.request_id) - free, 1 - room.slots_free)

    def _only_the_reserve_is_free(self, head: QueueRequest, room: KvBudget) -> bool:
        return head.tier not in RESERVED_FOR and self._reserved_still(room) > 0

    def _reserve(self, blocks_total: int) -> int:
        return ceil(self.settings.premium_reserve * blocks_total)

    def _reserved_still(self, room: KvBudget) -> int:
        """Blocks of the reserve that those whom it is for do not hold yet."""
        if not self.settings.premium_reserve:
            return 0
        held = sum(resident.blocks for resident in room.residents() if resident.tier in RESERVED_FOR)
        return max(0, self._reserve(room.blocks_total) - held)

    def _evictions(self, head: QueueRequest, shortage: Shortage, room: KvBudget) -> tuple[Eviction, ...] | None:
        if not self.settings.preemption:
            return None
        victims = choose_victims(
            shortage, room.residents(), lambda request_id: self.policy.precedence(head, request_id)
        )
        if victims is None:
            return None
        evictions: list[Eviction] = []
        swap_left = room.swap_bytes_free
        for victim in victims:
            eviction = self._eviction(victim, swap_left)
            if eviction.strategy is Strategy.SWAP:
                swap_left -= self.calibration.swap_bytes(victim.kv_tokens)
            evictions.append(eviction)
        return tuple(evictions)

    def _eviction(self, victim: Resident, swap_left: float) -> Eviction:
        tier_state = self._tiered().tier_state(victim.request_id)
        costs = costs_s(self.calibration, victim, tier_state.request, self._now_s)
        if tier_state.exhausted(self.settings):
            return Eviction(victim, Strategy.DROP, costs, exhausted=True)
        may_swap = 0 < self.calibration.swap_bytes(victim.kv_tokens) <= swap_left
        strategy = cheapest(costs, tier=victim.tier, may_drop=self.settings.may_drop, may_swap=may_swap)
        return Eviction(victim, strategy, costs)

    def _tiered(self) -> TieredQueue:
        """Only a policy with tiers lets anybody be evicted."""
        assert isinstance(self.policy, TieredQueue)  # noqa: S101
        return self.policy


def _all_of_it(head: QueueRequest, room: KvBudget) -> Shortage:
    """What one lacks that may use no room but what it makes: what is promised beyond what there is, it makes up too."""
    return Shortage(room.blocks_needed(head.request_id) - min(0, room.blocks_free), 1 - min(0, room.slots_free))
