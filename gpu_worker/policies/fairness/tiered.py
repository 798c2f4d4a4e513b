"""Tiers over a queue policy: the most urgent tier goes next, and the policy inside the tier chooses the tenant.

Source: docs/preemption-design.md; policies/tiers.py has the formulas.

    next tier    the system tier; else the tier of a promoted request (TierState); else, of the tiers that are owed
                 service, the one furthest behind relative to its share; else the tier of the request with the
                 lowest effective rank
    in the tier  its promoted request, if any; else the choice of its own policy: VTC, WSC or any other, with counters
                 and lift of its own

`precedence` decides which running request may be evicted for a waiting one. The running request must be of a less
urgent tier, and its rank at its admission must be above the current rank of the waiting one. Within a tier, if
`lead_max` is finite, its tenant must instead lead the waiting tenant by more than `lead_max` in the counters of the
tier's policy (VTC, Appendix C.3: the paper evicts the tenant with the highest counter, and so does this). A protected
request (TierState) is never evicted. A background request never evicts a request of another tier.

Invariants: no inversion of effective ranks, except for owed tiers and protected requests; at most preemptions_max
preemptions of a request; every tier with a share receives at least this share (TierShares), so every request is
admitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import inf
from typing import Any

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.fairness.interface import Applications, Precedence, QueuePolicy, QueueRequest, RequestRecord
from gpu_worker.policies.fairness.locality import PrefixLookups
from gpu_worker.policies.fairness.registry import PolicySpec, make_policy, register
from gpu_worker.policies.tiers import TierSettings, TierShares, TierState, tier_settings


class TieredQueue(QueuePolicy):
    """`inner`: makes the policy of one tier, which charges `service`."""

    def __init__(
        self,
        inner: Callable[[], QueuePolicy],
        settings: TierSettings | None = None,
        service: ServiceFunction = WEIGHTED_TOKENS,
    ) -> None:
        self.service = service
        self.settings = settings or TierSettings()
        self.shares = TierShares(self.settings)
        example = inner()
        self.work_conserving, self.lookups_max = example.work_conserving, example.lookups_max
        self.locality = example.locality or self.settings.locality
        self.loaded_first = self.settings.loaded_first
        self.admissions, self.aged = 0, 0
        """Admissions so far, and those of requests that aging had raised by a whole rank."""
        self._inner = inner
        self._tiers: dict[Tier, QueuePolicy] = {}
        self._states: dict[str, TierState] = {}
        self._evictable: Counter[Tier] = Counter()
        """Running requests that are not protected, by tier."""
        self._promoted: dict[str, TierState] = {}
        """Waiting requests that are promoted, in the order of their promotion."""
        self._now_s = 0.0
        self._lookups: PrefixLookups | None = None

    def use_lookups(self, lookups: PrefixLookups) -> None:
        self._lookups = lookups
        for policy in self._tiers.values():
            policy.use_lookups(lookups)

    @property
    def waiting(self) -> int:
        return sum(policy.waiting for policy in self._tiers.values())

    @property
    def running(self) -> int:
        return sum(policy.running for policy in self._tiers.values())

    @property
    def received(self) -> dict[str, TenantService]:
        """The sum over the tiers: a tenant that changed its tier has service in several."""
        tenants: dict[str, TenantService] = {}
        for policy in self._tiers.values():
            for tenant, service in policy.received.items():
                tenants[tenant] = tenants[tenant] + service if tenant in tenants else service
        return tenants

    @property
    def by_tier(self) -> Mapping[Tier, QueuePolicy]:
        """The policy of each tier that has had a request."""
        return self._tiers

    def waiting_of(self, tenant: str) -> int:
        return sum(policy.waiting_of(tenant) for policy in self._tiers.values())

    def waiting_in(self, tier: Tier) -> int:
        return self._tiers[tier].waiting if tier in self._tiers else 0

    def running_in(self, tier: Tier) -> int:
        return self._tiers[tier].running if tier in self._tiers else 0

    def holds(self, request_id: str) -> bool:
        return request_id in self._states

    def is_running(self, request_id: str) -> bool:
        return self._states[request_id].running

    def record(self, request_id: str) -> RequestRecord:
        return self._tiers[self._states[request_id].tier].record(request_id)

    def tier_state(self, request_id: str) -> TierState:
        return self._states[request_id]

    def counter(self, tenant: str) -> float | None:
        """Return the highest counter of the tenant in any tier."""
        found = [policy.counter(tenant) for policy in self._tiers.values()]
        return max((counter for counter in found if counter is not None), default=None)

    def counters(self) -> list[dict[str, float]]:
        return [counters for policy in self._tiers.values() for counters in policy.counters()]

    def advance_to(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)

    def enqueue(self, request: QueueRequest, now_s: float = 0.0) -> bool:
        if self.holds(request.request_id):
            raise ValueError(f"request {request.request_id!r} is here already")
        self.advance_to(now_s)
        policy = self._policy_of(request.tier)
        if not policy.enqueue(request, now_s):
            return False
        self._states[request.request_id] = TierState(policy.record(request.request_id), self._now_s)
        self._after_joining(request.tier)
        return True

    def heads(self) -> list[QueueRequest]:
        """Return the next request of each tier, the most urgent first."""
        return sorted(self._heads(), key=self._urgency)

    def peek(self) -> QueueRequest | None:
        found = self._heads()
        return found[0] if len(found) == 1 else min(found, key=self._urgency, default=None)

    def set_aside(self, request_id: str) -> None:
        self._tiers[self._states[request_id].tier].set_aside(request_id)
        self._promoted.pop(request_id, None)

    def take_back(self, request_id: str) -> None:
        state = self._states[request_id]
        self._tiers[state.tier].take_back(request_id)
        if state.promoted(self.settings) and not state.running:
            self._promoted.setdefault(request_id, state)

    def rank_of(self, request_id: str) -> float:
        """Return the effective rank: of a waiting request now, of a running request at its admission."""
        state = self._states[request_id]
        return state.rank if state.running else self._rank_now(state)

    def precedence(self, waiting: QueueRequest, running_id: str) -> Precedence | None:
        found = self.pause_precedence(waiting, running_id)
        if found is None or (victim := self._states[running_id]).protected(self.settings):
            return None
        if victim.tier is not waiting.tier and victim.rank <= self.rank_of(waiting.request_id):
            return None
        return found

    def pause_precedence(self, waiting: QueueRequest, running_id: str) -> Precedence | None:
        running = self._states[running_id].request
        ranks = running.tier.rank - waiting.tier.rank
        if not self.settings.preemption or ranks < 0:
            return None
        if ranks > 0:
            return float(ranks), 0.0
        lead = self._lead(running, waiting)
        return (0.0, lead) if lead > self.settings.lead_max else None

    def may_preempt(self) -> bool:
        """Return False if certainly no running request can be evicted for a waiting one: a fast pre-check."""
        if not self.settings.preemption:
            return False
        waiting, running = inf, -inf
        for tier, policy in self._tiers.items():
            if policy.waiting and tier.rank < waiting:
                waiting = tier.rank
            if self._evictable[tier] and tier.rank > running:
                running = tier.rank
        if waiting < running:
            return True
        return self.settings.lead_max < inf and any(map(self._may_lead, self._tiers))

    def passes(self, head: QueueRequest) -> bool:
        """Return whether the next request is next although a more urgent one waits."""
        rank = head.tier.rank
        return any(policy.waiting and tier.rank < rank for tier, policy in self._tiers.items())

    def _may_lead(self, tier: Tier) -> bool:
        """Return whether a running request's tenant may lead the tier's next one by more than `lead_max`."""
        policy = self._tiers[tier]
        if not policy.waiting or not self._evictable[tier]:
            return False
        head = self._head(tier)
        counter = None if head is None else policy.counter(head.tenant)
        return counter is not None and policy.may_exceed(counter + self.settings.lead_max)

    def eviction_key(self, request_id: str) -> tuple[bool, float, int]:
        """Return a sort key for running requests: an engine that runs out of blocks evicts the last one first.

        Protected requests come first; then the lowest rank at admission, then the earliest admission.
        """
        state = self._states[request_id]
        return not state.protected(self.settings), state.rank, state.admission

    def admit(self, request_id: str) -> QueueRequest:
        state = self._states[request_id]
        tier = state.tier
        self.admissions += 1
        behind, deficit = self.shares.lack(tier)
        is_owed = self.shares.owes(tier, behind)
        state.enter_batch(self.settings, self._now_s, deficit, for_share=is_owed, admission=self.admissions)
        self.aged += state.aged
        self._evictable[tier] += not state.protected(self.settings)
        request = self._tiers[tier].admit(request_id)
        self._promoted.pop(request_id, None)
        if not state.record.resumed:
            self.shares.charge_prompt(tier, request.input_tokens)
        self.shares.start_running(tier)
        self._after_leaving(tier)
        return request

    def undo_admit(self, request_id: str) -> None:
        state = self._remove_from_batch(request_id)
        tier, policy = state.tier, self._tiers[state.tier]
        self.aged -= state.aged
        record = policy.record(request_id)
        if not record.resumed:
            self.shares.charge_prompt(tier, -record.request.input_tokens)
            self.shares.charge_output(tier, -record.output_tokens)
        policy.undo_admit(request_id)
        if state.promoted(self.settings):  # back to its old place: admissions are undone in reverse order
            self._promoted = {request_id: state, **self._promoted}
        if policy.waiting == 1:
            self.shares.undo_stop_waiting(tier)

    def preempt(self, request_id: str, *, counts: bool = True) -> None:
        state = self._remove_from_batch(request_id)
        self._tiers[state.tier].preempt(request_id, counts=counts)
        if state.promoted(self.settings):
            self._promoted[request_id] = state
        self._after_joining(state.tier)

    def on_cached(self, request_id: str, input_tokens: int) -> None:
        self._tiers[self._states[request_id].tier].on_cached(request_id, input_tokens)

    def on_adapter_loaded(self, request_id: str) -> None:
        tier = self._states[request_id].tier
        self._tiers[tier].on_adapter_loaded(request_id)
        self.shares.charge_prompt(tier, self.settings.adapter_load_tokens)

    def on_prompt_counted(self, request_id: str, input_tokens: int) -> None:
        state = self._states[request_id]
        before = state.request.input_tokens
        self._tiers[state.tier].on_prompt_counted(request_id, input_tokens)
        self.shares.charge_prompt(state.tier, state.request.input_tokens - before)

    def on_generated(self, request_id: str, output_tokens: int) -> None:
        tier = self._states[request_id].tier
        policy = self._tiers[tier]
        before = policy.record(request_id).output_tokens
        policy.on_generated(request_id, output_tokens)
        self.shares.charge_output(tier, max(0, output_tokens - before))

    def on_decoded(self, steps: int, excluding: Collection[str] = ()) -> None:
        if not excluding:
            self.shares.on_decoded(steps)
            for policy in self._tiers.values():
                policy.on_decoded(steps)
            return
        excluded = [self._states[request_id] for request_id in excluding]
        for state in excluded:
            self.shares.stop_running(state.tier)
        self.shares.on_decoded(steps)
        for tier, policy in self._tiers.items():
            policy.on_decoded(steps, [state.request.request_id for state in excluded if state.tier is tier])
        for state in excluded:
            self.shares.start_running(state.tier)

    def finish(self, request_id: str) -> None:
        state = self._remove_from_batch(request_id)
        del self._states[request_id]
        self._tiers[state.tier].finish(request_id)

    def cancel(self, request_id: str) -> None:
        state = self._states[request_id]
        self._tiers[state.tier].cancel(request_id)
        del self._states[request_id]
        self._promoted.pop(request_id, None)
        self._after_leaving(state.tier)

    def remove(self, request_id: str) -> None:
        (self.finish if self._states[request_id].running else self.cancel)(request_id)

    def _policy_of(self, tier: Tier) -> QueuePolicy:
        if tier not in self._tiers:
            self._tiers[tier] = policy = self._inner()
            policy.cached_fraction = self.settings.cached_fraction
            policy.adapter_load_tokens = self.settings.adapter_load_tokens
            if self._lookups is not None:
                policy.use_lookups(self._lookups)
        return self._tiers[tier]

    def _head(self, tier: Tier) -> QueueRequest | None:
        promoted = next((state.request for state in self._promoted.values() if state.tier is tier), None)
        return promoted or self._tiers[tier].peek()

    def _heads(self) -> list[QueueRequest]:
        return [head for tier in self._tiers if (head := self._head(tier)) is not None]

    def _urgency(self, head: QueueRequest) -> tuple[int, float, int]:
        """Return a sort key, the most urgent first, in the order of `next tier` in the module's description."""
        tier = head.tier
        if tier is Tier.SYSTEM:
            return 0, 0.0, tier.rank
        if head.request_id in self._promoted:
            return 1, 0.0, tier.rank
        behind, deficit = self.shares.lack(tier)
        if self.shares.owes(tier, behind):
            return 2, -behind / self.settings.share(tier), tier.rank
        return 3, self._states[head.request_id].rank_now(self.settings, self._now_s, deficit), tier.rank

    def _rank_now(self, state: TierState) -> float:
        return state.rank_now(self.settings, self._now_s, self.shares.deficit(state.tier))

    def _lead(self, victim: QueueRequest, waiting: QueueRequest) -> float:
        """Return the victim's tenant's counter minus the waiting one's; minus infinity if there are no counters."""
        policy = self._tiers[victim.tier]
        ahead, behind = policy.counter(victim.tenant), policy.counter(waiting.tenant)
        return -inf if ahead is None or behind is None else ahead - behind

    def _after_joining(self, tier: Tier) -> None:
        if self._tiers[tier].waiting == 1:
            self.shares.start_waiting(tier)

    def _after_leaving(self, tier: Tier) -> None:
        if not self._tiers[tier].waiting:
            self.shares.stop_waiting(tier)

    def _remove_from_batch(self, request_id: str) -> TierState:
        """Stop the tiers' accounts of a running request; the tier's policy still has it in the batch."""
        state = self._states[request_id]
        self.shares.stop_running(state.tier)
        self._evictable[state.tier] -= not state.protected(self.settings)
        state.running, state.since_s = False, self._now_s
        return state


def _make(spec: PolicySpec) -> TieredQueue:
    name = spec.parameter or "vtc"
    if name.startswith("tiered"):
        raise ValueError(f"queue policy {spec.name!r} takes another policy after the colon, not {name!r}")
    make_policy(name, spec.service)  # refuse a wrong name now, not at the first request
    inner = partial(make_policy, name, spec.service, random=spec.random, applications=spec.applications)
    return TieredQueue(inner, spec.tiers, spec.service)


register(TieredQueue, "tiered[:POLICY]", make=_make)


SETTINGS_OF_ALL = frozenset({"cached_fraction", "adapter_load_tokens", "locality", "loaded_first"})
"""The settings of tiers that every policy takes."""


def make_queue(
    policy: str, tiers: Mapping[str, Any] | None = None, applications: Mapping[str, str] | None = None
) -> QueuePolicy:
    """Make a queue policy by its name. `tiers`: fields of TierSettings as plain values, for a policy with tiers; every
    policy takes SETTINGS_OF_ALL. `applications`: the application of each tenant that has one, for `wsc`.

    Raises ValueError for an unknown policy, for a wrong setting, and for settings of tiers that the policy lacks.
    """
    settings = None if tiers is None else tier_settings(tiers)
    queue = make_policy(policy, tiers=settings, applications=Applications(applications or {}))
    if settings is None or tiers is None or isinstance(queue, TieredQueue):
        return queue
    if tiers.keys() - SETTINGS_OF_ALL:
        raise ValueError(f"queue policy {policy!r} has no tiers to set; tiered:{policy} has")
    queue.cached_fraction, queue.adapter_load_tokens = settings.cached_fraction, settings.adapter_load_tokens
    queue.locality = queue.locality or settings.locality
    queue.loaded_first = settings.loaded_first
    return queue
