"""One pass of admissions: which requests enter the batch now, and which running requests are evicted for them.

An engine adapter asks for one plan after another and carries each out, until no more request can enter:

    admission.begin_pass(now_s)
    while (plan := admission.next_plan(budget)) is not None:
        evict plan.evictions, each by its strategy      policy.preempt, or policy.finish if the request is dropped
        admit plan.request                              policy.admit

The first request in the policy's order that does not fit ends the pass (VTC, Algorithm 2, line 22): if later requests
took the free blocks, it would wait even longer. There are two exceptions, in which a later request cannot delay it:

- The premium reserve withholds free blocks from it. It does not wait for these, so requests that may use the reserve
  continue.
- A later request evicts enough for all its blocks and its slot. It then takes nothing of what is free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import (
    UNCALIBRATED,
    Calibration,
    Eviction,
    Resident,
    Shortage,
    Strategy,
    cheapest,
    choose_victims,
    costs_s,
)
from gpu_worker.policies.tiers import TierSettings

RESERVED_FOR = frozenset({Tier.PREMIUM, Tier.SYSTEM})


class KvBudget(Protocol):
    """The free capacity of an engine. It changes while the adapter evicts and admits."""

    @property
    def blocks_total(self) -> int: ...

    @property
    def blocks_free(self) -> int:
        """Free KV blocks, and blocks that will be free before they are needed."""
        ...

    @property
    def slots_free(self) -> int: ...

    @property
    def swap_bytes_free(self) -> float: ...

    def blocks_needed(self, request_id: str) -> int:
        """Return the blocks that a waiting request takes when it enters."""
        ...

    def adapter_holders(self, request_id: str) -> Sequence[Sequence[str]]:
        """Return, for each loaded adapter, the running requests that use it, those admitted in this pass included.

        Empty if the waiting request needs no room for an adapter.
        """
        ...

    @property
    def premium_blocks(self) -> int:
        """Blocks held by requests that may use the premium reserve, those admitted in this pass included."""
        ...

    def residents(self, wanted: Callable[[str], bool]) -> Iterable[Resident]:
        """Return the running requests with a `wanted` id, without those admitted in this pass."""
        ...


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """A request to admit, and the evictions that must come first."""

    request: QueueRequest
    evictions: tuple[Eviction, ...] = ()


class Admission:
    """Plans the admissions of one engine, and watches deadlines.

    `calibration` may be replaced when it has been measured. `settings`: the tiers of the policy; a policy without tiers
    never preempts.
    """

    def __init__(self, policy: QueuePolicy, calibration: Calibration = UNCALIBRATED) -> None:
        self.policy = policy
        self.calibration = calibration
        self.settings = policy.settings if isinstance(policy, TieredQueue) else TierSettings(preemption=False)
        self._now_s = 0.0
        self._deadlines: list[tuple[float, str]] = []
        self._deadline_of: dict[str, float] = {}
        """An id may be used again; only its latest deadline is valid."""

    def enqueue(self, request: QueueRequest, now_s: float) -> bool:
        """Enqueue a request in the policy, and watch its deadline. Return False if the policy refuses it."""
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
        """Return, each once, the waiting and running requests past their deadline: their answers are useless now."""
        found: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= self._now_s:
            deadline_s, request_id = heappop(self._deadlines)
            if self._deadline_of.get(request_id) != deadline_s:
                continue
            del self._deadline_of[request_id]
            if self.policy.holds(request_id):
                found.append(request_id)
        return found

    def blocks_max(self, tier: Tier, blocks_total: int) -> int:
        """Return the most blocks that a request of this tier can ever have."""
        return blocks_total - (0 if tier in RESERVED_FOR else self._reserve(blocks_total))

    def next_plan(self, budget: KvBudget) -> AdmissionPlan | None:
        """Return the next admission, or None to end the pass. Changes nothing."""
        reserved_tiers_only = must_evict_all = False
        for head in self.policy.heads():
            if reserved_tiers_only and head.tier not in RESERVED_FOR:
                continue
            shortage = _shortage_without_free(head, budget) if must_evict_all else self._shortage(head, budget)
            holders = self._adapter_victims(head, budget)
            if holders is None:
                continue
            if shortage.is_covered and not holders:
                return AdmissionPlan(head)
            if (evictions := self._evictions(head, shortage, budget, holders)) is not None:
                return AdmissionPlan(head, evictions)
            reserved_tiers_only = shortage.slots <= 0 and self._is_kept_from_reserve(head, budget)
            must_evict_all = not reserved_tiers_only
        return None

    def may_have_adapter(self, head: QueueRequest, budget: KvBudget) -> bool:
        """Return whether the engine has room for the request's adapter, or can have it by allowed evictions."""
        return self._adapter_victims(head, budget) is not None

    def _adapter_victims(self, head: QueueRequest, budget: KvBudget) -> Collection[str] | None:
        """Return the running requests that must leave so that the request's adapter fits: all that use one adapter.

        Of several adapters, that of the fewest requests. None if each adapter has a user that may not be evicted.
        """
        groups = budget.adapter_holders(head.request_id)
        if not groups:
            return ()
        if not self.settings.preemption:
            return None
        victims = {resident.request_id for resident in self._evictable(head, budget)}
        return min(filter(victims.issuperset, groups), key=len, default=None)

    def _evictable(self, head: QueueRequest, budget: KvBudget) -> Iterable[Resident]:
        """Return the running requests that may be evicted for this one."""
        return budget.residents(lambda request_id: self.policy.precedence(head, request_id) is not None)

    def _shortage(self, head: QueueRequest, budget: KvBudget) -> Shortage:
        unusable = 0 if head.tier in RESERVED_FOR else self._unused_reserve(budget)
        return Shortage(
            blocks=budget.blocks_needed(head.request_id) - (budget.blocks_free - unusable),
            slots=1 - budget.slots_free,
        )

    def _is_kept_from_reserve(self, head: QueueRequest, budget: KvBudget) -> bool:
        return head.tier not in RESERVED_FOR and self._unused_reserve(budget) > 0

    def _reserve(self, blocks_total: int) -> int:
        return ceil(self.settings.premium_reserve * blocks_total)

    def _unused_reserve(self, budget: KvBudget) -> int:
        """Return the blocks of the premium reserve that are not in use."""
        if not self.settings.premium_reserve:
            return 0
        return max(0, self._reserve(budget.blocks_total) - budget.premium_blocks)

    def _evictions(
        self, head: QueueRequest, shortage: Shortage, budget: KvBudget, holders: Collection[str]
    ) -> tuple[Eviction, ...] | None:
        """Return the evictions that make room for the request; None if no allowed set of victims does.

        `holders`: victims that must leave for their adapter.
        """
        if not self.settings.preemption:
            return None
        precedence = partial(self.policy.precedence, head)
        victims = choose_victims(shortage, self._evictable(head, budget), precedence, holders)
        if victims is None:
            return None
        evictions: list[Eviction] = []
        swap_bytes_free = budget.swap_bytes_free
        for victim in victims:
            eviction = self._eviction(victim, swap_bytes_free)
            if eviction.strategy is Strategy.SWAP:
                swap_bytes_free -= self.calibration.swap_bytes(victim.kv_tokens)
            evictions.append(eviction)
        return tuple(evictions)

    def _eviction(self, victim: Resident, swap_bytes_free: float) -> Eviction:
        """Choose the strategy for a victim."""
        assert isinstance(self.policy, TieredQueue)  # noqa: S101 - only a policy with tiers has victims
        state = self.policy.tier_state(victim.request_id)
        costs = costs_s(self.calibration, victim, state.request, self._now_s)
        if state.exhausted(self.settings):
            return Eviction(victim, Strategy.DROP, costs, exhausted=True)
        may_swap = 0 < self.calibration.swap_bytes(victim.kv_tokens) <= swap_bytes_free
        strategy = cheapest(costs, tier=victim.tier, may_drop=self.settings.may_drop, may_swap=may_swap)
        return Eviction(victim, strategy, costs)


def _shortage_without_free(head: QueueRequest, budget: KvBudget) -> Shortage:
    """Return the shortage of a request that may use only what its victims free, and must also cover any deficit."""
    return Shortage(
        blocks=budget.blocks_needed(head.request_id) - min(0, budget.blocks_free),
        slots=1 - min(0, budget.slots_free),
    )
