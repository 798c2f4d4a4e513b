"""Tiers over a queue policy: which tier goes next by effective rank, which tenant of it by the policy inside.

Source: the practitioner's design for tiered preemption; standing.py and tiers/shares.py have the formulas.

    next    the system's; else who was promoted (standing.py); else of the tiers that are owed their share the one owed
            most, measured in shares; else the tier whose next request has the lowest effective rank
    inside  a policy of its own for each tier: VTC, WSC or any other, with its own counters and lift; but who was
            promoted is the next of its tier

Who may be evicted for whom (`precedence`), both strictly: a running request of a less urgent tier whose rank at its
admission is behind the waiting one's now; nobody for a background request; nobody that is protected (standing.py).
Within a tier, where `lead_max` is finite, one of a tenant that leads the waiting one's by more than that in the inner
policy's counters (VTC, Appendix C.3): the paper evicts the tenant with the highest counter, and so does this.

Invariants: no inversion by effective rank, but for what a tier is owed and what is protected; at most preemptions_max
preemptions a request; every tier with a share gets at least it (tiers/shares.py), so every request is admitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from math import inf

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.accounting.tenant_service import TenantService
from gpu_worker.policies.fairness.interface import Precedence, QueuePolicy
from gpu_worker.policies.fairness.registry import PolicySpec, make_policy, register
from gpu_worker.policies.request import QueueRequest
from gpu_worker.policies.tiers.settings import TierSettings
from gpu_worker.policies.tiers.shares import TierShares
from gpu_worker.policies.tiers.state import TierState


class TieredQueue(QueuePolicy):
    """`inner`: makes the policy of one tier, charging `service`."""

    def __init__(
        self,
        inner: Callable[[], QueuePolicy],
        settings: TierSettings | None = None,
        service: ServiceFunction = WEIGHTED_TOKENS,
    ) -> None:
        self.service = service
        self.settings = settings or TierSettings()
        self.shares = TierShares(self.settings)
        self.work_conserving = inner().work_conserving
        self.admissions = 0
        """So far; each has its number."""
        self._inner = inner
        self._tiers: dict[Tier, QueuePolicy] = {}
        self._tier_states: dict[str, TierState] = {}
        self._evictable: Counter[Tier] = Counter()
        """Running requests that somebody might be let in for, by tier."""
        self._promoted: dict[str, TierState] = {}
        """Those that wait, the first promoted first."""
        self._now_s = 0.0
        self._steps = 0

    @property
    def waiting(self) -> int:
        return sum(policy.waiting for policy in self._tiers.values())

    @property
    def running(self) -> int:
        return sum(policy.running for policy in self._tiers.values())

    @property
    def received(self) -> dict[str, TenantService]:
        """A tenant whose tier was changed is the sum of what it got in either."""
        tenants: dict[str, TenantService] = {}
        for policy in self._tiers.values():
            for tenant, got in policy.received.items():
                tenants[tenant] = tenants[tenant] + got if tenant in tenants else got
        return tenants

    def waiting_of(self, tenant: str) -> int:
        return sum(policy.waiting_of(tenant) for policy in self._tiers.values())

    def waiting_in(self, tier: Tier) -> int:
        return self._tiers[tier].waiting if tier in self._tiers else 0

    def tier_state(self, request_id: str) -> TierState:
        return self._tier_states[request_id]

    def holds(self, request_id: str) -> bool:
        return request_id in self._tier_states

    def advance_to(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)

    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        if self.holds(request.request_id):
            raise ValueError(f"request {request.request_id!r} is here already")
        self.advance_to(now_s)
        policy = self._of_tier(request.tier)
        if not policy.enqueue(request, now_s):
            return False
        self._tier_states[request.request_id] = TierState(request, self._now_s)
        self._begins_to_wait(request.tier)
        return True

    def heads(self) -> list[QueueRequest]:
        """The next of each tier, the most urgent first."""
        return sorted(self._heads(), key=self._urgency)

    def peek(self) -> QueueRequest | None:
        found = self._heads()
        return found[0] if len(found) == 1 else min(found, key=self._urgency, default=None)

    def rank_of(self, request_id: str) -> float:
        """Effective: of a waiting request now, of a running one at its admission."""
        tier_state = self._tier_states[request_id]
        return tier_state.rank if tier_state.running else self._rank_now(tier_state)

    def precedence(self, waiting: QueueRequest, running_id: str) -> Precedence | None:
        victim = self._tier_states[running_id]
        if not self.settings.preemption or victim.protected(self.settings):
            return None
        steps = victim.tier.rank - waiting.tier.rank
        if steps == 0:
            lead = self._lead(victim.request, waiting)
            return (0.0, lead) if lead > self.settings.lead_max else None
        if steps < 0 or waiting.tier is Tier.BACKGROUND or victim.rank <= self.rank_of(waiting.request_id):
            return None
        return float(steps), 0.0

    def may_preempt(self) -> bool:
        """Whether anybody runs who could be evicted for anybody who waits: cheap, and most often no."""
        if not self.settings.preemption:
            return False
        waiting = [tier.rank for tier, policy in self._tiers.items() if policy.waiting]
        running = [tier.rank for tier, evictable in self._evictable.items() if evictable]
        if self.settings.lead_max < inf and set(waiting) & set(running):
            return True
        return bool(waiting) and bool(running) and min(waiting) < max(running)

    def eviction_key(self, request_id: str) -> tuple[bool, float, int]:
        """Running requests in this order are kept from the first to the last: who may not be evicted, by rank at the
        admission, those who came first."""
        tier_state = self._tier_states[request_id]
        return not tier_state.protected(self.settings), tier_state.rank, tier_state.admission

    def is_running(self, request_id: str) -> bool:
        return self._tier_states[request_id].running

    def counter(self, tenant: str) -> float | None:
        """The highest of its tiers."""
        found = [policy.counter(tenant) for policy in self._tiers.values()]
        return max((counter for counter in found if counter is not None), default=None)

    def counters(self) -> list[dict[str, float]]:
        return [counters for policy in self._tiers.values() for counters in policy.counters()]

    def admit(self, request_id: str) -> QueueRequest:
        tier_state = self._tier_states[request_id]
        tier = tier_state.tier
        tier_state.rank, tier_state.owed = self._rank_now(tier_state), self.shares.is_owed(tier)
        tier_state.waited_s += max(0.0, self._now_s - tier_state.since_s)
        tier_state.running, tier_state.resumed, tier_state.since_step = True, tier_state.charged, self._steps
        self.admissions += 1
        tier_state.admission = self.admissions
        self._evictable[tier] += not tier_state.protected(self.settings)
        request = self._tiers[tier].admit(request_id)
        self._promoted.pop(request_id, None)
        if not tier_state.charged:
            tier_state.charged = True
            self.shares.charge_prompt(tier, request.input_tokens)
        self.shares.start_running(tier)
        self._ends_waiting(tier)
        return request

    def undo_admit(self, request_id: str) -> None:
        tier_state = self._out_of_batch(request_id)
        if not tier_state.resumed:
            self.shares.charge_prompt(tier_state.tier, -tier_state.request.input_tokens)
            self.shares.charge_output(tier_state.tier, -tier_state.output_tokens)
            tier_state.charged, tier_state.output_tokens = False, 0
        self._tiers[tier_state.tier].undo_admit(request_id)
        if tier_state.promoted(self.settings):  # where it stood: those that are put back come last first
            self._promoted = {request_id: tier_state, **self._promoted}
        if self._tiers[tier_state.tier].waiting == 1:
            self.shares.undo_stop_waiting(tier_state.tier)

    def preempt(self, request_id: str) -> None:
        tier_state = self._out_of_batch(request_id)
        tier_state.preemptions += 1
        self._tiers[tier_state.tier].preempt(request_id)
        if tier_state.promoted(self.settings):
            self._promoted[request_id] = tier_state
        self._begins_to_wait(tier_state.tier)

    def cached(self, request_id: str, input_tokens: int) -> None:
        self._tiers[self._tier_states[request_id].tier].cached(request_id, input_tokens)

    def generated(self, request_id: str, output_tokens: int) -> None:
        tier_state = self._tier_states[request_id]
        self._catch_up(tier_state)
        if output_tokens > tier_state.output_tokens:
            self.shares.charge_output(tier_state.tier, output_tokens - tier_state.output_tokens)
            tier_state.output_tokens = output_tokens
        self._tiers[tier_state.tier].generated(request_id, output_tokens)

    def decoded(self, steps: int, excluding: Collection[str] = ()) -> None:
        stalled = [self._tier_states[request_id] for request_id in excluding]
        for tier_state in stalled:
            self._catch_up(tier_state)
            self.shares.stop_running(tier_state.tier)
        self._steps += steps
        self.shares.decoded(steps)
        for tier, policy in self._tiers.items():
            policy.decoded(steps, [one.request.request_id for one in stalled if one.tier is tier])
        for tier_state in stalled:
            tier_state.since_step = self._steps
            self.shares.start_running(tier_state.tier)

    def finish(self, request_id: str) -> None:
        tier_state = self._out_of_batch(request_id)
        del self._tier_states[request_id]
        self._tiers[tier_state.tier].finish(request_id)

    def cancel(self, request_id: str) -> None:
        tier_state = self._tier_states[request_id]
        self._tiers[tier_state.tier].cancel(request_id)
        del self._tier_states[request_id]
        self._promoted.pop(request_id, None)
        self._ends_waiting(tier_state.tier)

    def remove(self, request_id: str) -> None:
        (self.finish if self._tier_states[request_id].running else self.cancel)(request_id)

    def _of_tier(self, tier: Tier) -> QueuePolicy:
        if tier not in self._tiers:
            self._tiers[tier] = policy = self._inner()
            policy.cached_fraction = self.settings.cached_fraction
        return self._tiers[tier]

    def _head(self, tier: Tier) -> QueueRequest | None:
        promoted = next((tier_state.request for tier_state in self._promoted.values() if tier_state.tier is tier), None)
        return promoted or self._tiers[tier].peek()

    def _heads(self) -> list[QueueRequest]:
        return [head for tier in self._tiers if (head := self._head(tier)) is not None]

    def _urgency(self, head: QueueRequest) -> tuple[int, float, int]:
        tier = head.tier
        if tier is Tier.SYSTEM:
            return 0, 0.0, tier.rank
        if head.request_id in self._promoted:
            return 1, 0.0, tier.rank
        if self.shares.is_owed(tier):
            return 2, -self.shares.behind(tier) / self.settings.share(tier), tier.rank
        return 3, self._rank_now(self._tier_states[head.request_id]), tier.rank

    def _rank_now(self, tier_state: TierState) -> float:
        return tier_state.rank_now(self.settings, self._now_s, self.shares.deficit(tier_state.tier))

    def _lead(self, victim: QueueRequest, waiting: QueueRequest) -> float:
        """How far the victim's tenant is ahead of the waiting one's; minus infinity where nothing tells."""
        policy = self._tiers[victim.tier]
        ahead, behind = policy.counter(victim.tenant), policy.counter(waiting.tenant)
        return -inf if ahead is None or behind is None else ahead - behind

    def _begins_to_wait(self, tier: Tier) -> None:
        if self._tiers[tier].waiting == 1:
            self.shares.start_waiting(tier)

    def _ends_waiting(self, tier: Tier) -> None:
        if not self._tiers[tier].waiting:
            self.shares.stop_waiting(tier)

    def _out_of_batch(self, request_id: str) -> TierState:
        tier_state = self._tier_states[request_id]
        self._catch_up(tier_state)
        self.shares.stop_running(tier_state.tier)
        self._evictable[tier_state.tier] -= not tier_state.protected(self.settings)
        tier_state.running, tier_state.since_s = False, self._now_s
        return tier_state

    def _catch_up(self, tier_state: TierState) -> None:
        """Steps that `decoded` told of: the shares know of them already."""
        tier_state.output_tokens += self._steps - tier_state.since_step
        tier_state.since_step = self._steps


def _make(spec: PolicySpec) -> TieredQueue:
    name = spec.parameter or "vtc"
    if name.startswith("tiered"):
        raise ValueError(f"queue policy {spec.name!r} takes another policy after the colon, not {name!r}")
    make_policy(name, spec.service)  # a wrong name is refused now, not at the first request
    inner = partial(make_policy, name, spec.service, random=spec.random)
    return TieredQueue(inner, spec.tiers, spec.service)


register(TieredQueue, "tiered[:POLICY]", make=_make)
