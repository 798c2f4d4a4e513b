"""One pass of admissions: which requests enter the batch now, and which running requests are evicted for them.

An engine adapter asks for one plan after another and carries each out, until no more request can enter:

    admission.begin_pass(now_s)
    while (plan := admission.next_plan(budget)) is not None:
        evict plan.evictions, each by its strategy      policy.preempt, or policy.finish if the request is dropped
        admit plan.request                              policy.admit

`admissible` is the rule for one request. It takes a vector: KV blocks, a slot, a token of the next step, room for its
adapter, and things that only the engine knows (`KvBudget.obstacle`: its grammar, the encoder's budget).

The first request in the policy's order that does not fit ends the pass (VTC, Algorithm 2, line 22): if later requests
took the free blocks, it would wait even longer. There are three exceptions, in which a later request cannot starve it:

- The premium reserve withholds free blocks from it. It does not wait for these, so requests that may use the reserve
  continue.
- A later request evicts enough for all its blocks and its slot. It then takes nothing of what is free.
- A later request is of a more urgent tier, and all running requests of more urgent tiers together, with the later one,
  leave it room: its blocks and a slot. So it waits for the running requests of its own and of less urgent tiers to end,
  and for no other. Aging and a tier's share change the order, but a giant prompt that waits for blocks or for a step's
  tokens does not hold back a more urgent first token for seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
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
from gpu_worker.policies.step_tokens import StepTokens
from gpu_worker.policies.tiers import TierSettings

RESERVED_FOR = frozenset({Tier.PREMIUM, Tier.SYSTEM})


class Obstacle(Enum):
    """The reason why a request cannot enter the batch now."""

    PASSED_OVER = auto()
    """It could not run if it had the room: the engine goes on with the next request of its tier."""
    BLOCKED = auto()
    """It lacks room. It keeps its place, and others that wait behind it may not take the room."""
    RESERVED = auto()
    """It lacks blocks that are free, but reserved for more urgent requests."""


class KvBudget(Protocol):
    """The free capacity of an engine. It changes while the adapter evicts and admits."""

    @property
    def step_tokens(self) -> StepTokens | None:
        """The next step's tokens; None if a newcomer needs none."""
        ...

    def obstacle(self, request_id: str) -> Obstacle | None:
        """Return the obstacle that no eviction removes and that only the engine knows."""
        ...

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

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        """Return the blocks of running requests of these tiers, those admitted in this pass included."""
        ...

    def residents(self, wanted: Callable[[str], bool]) -> Iterable[Resident]:
        """Return the running requests with a `wanted` id, without those admitted in this pass."""
        ...


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """A request to admit, and the evictions that must come first."""

    request: QueueRequest
    evictions: tuple[Eviction, ...] = ()


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A request that lacks room, and the blocks that it needs."""

    tier: Tier
    blocks: int


class Admission:
    """Plans the admissions of one engine, and watches deadlines.

    `calibration` may be replaced when it has been measured. `settings`: the tiers of the policy; a policy without tiers
    never preempts.
    """

    def __init__(self, policy: QueuePolicy, calibration: Calibration = UNCALIBRATED) -> None:
        self.policy = policy
        self.calibration = calibration
        self._tiers = policy if isinstance(policy, TieredQueue) else None
        self.settings = TierSettings(preemption=False) if self._tiers is None else self._tiers.settings
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
        return blocks_total - (0 if tier in RESERVED_FOR else self.reserve(blocks_total))

    def next_plan(self, budget: KvBudget) -> AdmissionPlan | None:
        """Return the next admission, or None to end the pass. Changes nothing."""
        blocked: list[_Blocked] = []
        reserved_tiers_only = False
        for head in self.policy.heads():
            if reserved_tiers_only and head.tier not in RESERVED_FOR:
                continue
            found = self.admissible(head, budget, blocked)
            if isinstance(found, AdmissionPlan):
                return found
            if found is Obstacle.BLOCKED:
                blocked.append(_Blocked(head.tier, budget.blocks_needed(head.request_id)))
            reserved_tiers_only |= found is Obstacle.RESERVED
        return None

    def admissible(
        self, head: QueueRequest, budget: KvBudget, blocked: Sequence[_Blocked] = ()
    ) -> AdmissionPlan | Obstacle:
        """Return how the request enters now, or its obstacle. `blocked`: requests before it that lack room."""
        if (obstacle := budget.obstacle(head.request_id)) is not None:
            return obstacle
        if (holders := self._adapter_victims(head, budget)) is None:
            return Obstacle.PASSED_OVER
        needed = budget.blocks_needed(head.request_id)
        if all(self._leaves_room(head.tier, needed, one, budget) for one in blocked):
            shortage = self._shortage(head, needed, budget)
        else:
            shortage = _shortage_without_free(needed, budget)
        evictions: tuple[Eviction, ...] | None = ()
        if not shortage.is_covered or holders:
            evictions = self._evictions(head, shortage, budget, holders)
        if evictions is not None and self._has_tokens(head, evictions, budget):
            return AdmissionPlan(head, evictions)
        if evictions is None and shortage.slots <= 0 and self._is_kept_from_reserve(head, budget):
            return Obstacle.RESERVED
        return Obstacle.BLOCKED

    def is_passed_over(self, head: QueueRequest, budget: KvBudget) -> bool:
        """Return whether the engine goes on with the next request of the tier, with any room."""
        obstacle = budget.obstacle(head.request_id)
        return obstacle is Obstacle.PASSED_OVER or (obstacle is None and self._adapter_victims(head, budget) is None)

    def _leaves_room(self, tier: Tier, needed: int, blocked: _Blocked, budget: KvBudget) -> bool:
        """Return whether a request of this tier may take what is free before one that lacks room: it is more urgent,
        and all that is more urgent, this request included, leaves the blocked one its blocks and a slot."""
        if self._tiers is None or tier.rank >= blocked.tier.rank:
            return False
        urgent = [each for each in Tier if each.rank < blocked.tier.rank]
        slots = sum(map(self._tiers.running_in, urgent)) + 1
        if slots >= self._tiers.running + budget.slots_free:
            return False
        return budget.blocks_held_by(urgent) + needed + blocked.blocks <= budget.blocks_total

    def _has_tokens(self, head: QueueRequest, evictions: Iterable[Eviction], budget: KvBudget) -> bool:
        """Return whether the next step has a token for the request once these evictions are made."""
        tokens = budget.step_tokens
        if tokens is None:
            return True
        victims = {eviction.resident.request_id for eviction in evictions}
        return tokens.available(partial(self.policy.pause_precedence, head), victims) > 0

    def _adapter_victims(self, head: QueueRequest, budget: KvBudget) -> Collection[str] | None:
        """Return the running requests that must leave so that the request's adapter fits: all that use one adapter.

        Of several adapters, that of the fewest requests. None if each adapter has a user that may not be evicted.
        """
        groups = budget.adapter_holders(head.request_id)
        if not groups:
            return ()
        if not self.settings.preemption:
            return None
        precedence = partial(self.policy.precedence, head)
        groups = [group for group in groups if all(precedence(request_id) is not None for request_id in group)]
        if not groups:
            return None  # most often
        victims = {resident.request_id for resident in self._evictable(head, budget)}
        return min(filter(victims.issuperset, groups), key=len, default=None)

    def _evictable(self, head: QueueRequest, budget: KvBudget) -> Iterable[Resident]:
        """Return the running requests that may be evicted for this one."""
        return budget.residents(lambda request_id: self.policy.precedence(head, request_id) is not None)

    def _shortage(self, head: QueueRequest, needed: int, budget: KvBudget) -> Shortage:
        unusable = 0 if head.tier in RESERVED_FOR else self._unused_reserve(budget)
        return Shortage(blocks=needed - (budget.blocks_free - unusable), slots=1 - budget.slots_free)

    def _is_kept_from_reserve(self, head: QueueRequest, budget: KvBudget) -> bool:
        return head.tier not in RESERVED_FOR and self._unused_reserve(budget) > 0

    def reserve(self, blocks_total: int) -> int:
        """Return how many of the blocks only premium and system requests may take."""
        return ceil(self.settings.premium_reserve * blocks_total)

    def _unused_reserve(self, budget: KvBudget) -> int:
        """Return the blocks of the premium reserve that are not in use."""
        if not self.settings.premium_reserve:
            return 0
        return max(0, self.reserve(budget.blocks_total) - budget.blocks_held_by(RESERVED_FOR))

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


def _shortage_without_free(needed: int, budget: KvBudget) -> Shortage:
    """Return the shortage of a request that may use only what its victims free, and must also cover any deficit."""
    return Shortage(blocks=needed - min(0, budget.blocks_free), slots=1 - min(0, budget.slots_free))
