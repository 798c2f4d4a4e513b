"""Rules for a plan of admission.py at the moment it is made, written from the specification and not from the code."""

from __future__ import annotations

from math import ceil

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.admission import RESERVED_FOR, AdmissionPlan
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.preemption import Resident, Strategy
from tests.support.queue.block_model import BlockModel


def plan_is_right(model: BlockModel, plan: AdmissionPlan | None) -> None:
    """Check a plan. None, at the end of a pass: the next request does not fit, whatever is evicted."""
    heads = {head.request_id: head for head in model.policy.heads()}
    order = sorted(heads.values(), key=lambda head: _urgency(model, head))
    if plan is None:
        assert not order or _is_short(model, order[0], _candidates(model, order[0]))
        return
    passed = order[: order.index(plan.request)]
    if passed and _victims_free_enough(model, plan):
        assert _is_short(model, passed[0], _candidates(model, passed[0])), "the passed request would fit"
        _victims_are_right(model, plan, victims_only=True)
        return
    if passed and all(_leaves_room(model, plan.request, other) for other in passed):
        assert _is_short(model, passed[0], _candidates(model, passed[0])), "the passed request would fit"
    elif passed:
        assert plan.request.tier in RESERVED_FOR, "a less urgent request went first"
        assert not any(other.tier in RESERVED_FOR for other in passed), "a less urgent request went first"
        assert _is_short(model, passed[0], _candidates(model, passed[0])), "the passed request would fit"
        assert model.slots_free > 0, "the passed request waits for a slot and not for the reserve"
        assert reserve_unused(model) > 0, "the reserve is in use and is no reason to pass"
    _victims_are_right(model, plan)


def _leaves_room(model: BlockModel, head: QueueRequest, passed: QueueRequest) -> bool:
    """Return whether the passed request is of a less urgent tier, and waits for none that is more urgent than it."""
    if head.tier.rank >= passed.tier.rank:
        return False
    urgent = [live for live in model.running.values() if live.request.tier.rank < passed.tier.rank]
    blocks = sum(live.blocks for live in urgent) + model.blocks_needed(head.request_id)
    has_slot = len(urgent) + 1 < len(model.running) + model.slots_free
    return has_slot and blocks + model.blocks_needed(passed.request_id) <= model.blocks_total


def _victims_free_enough(model: BlockModel, plan: AdmissionPlan) -> bool:
    freed = sum(eviction.resident.blocks for eviction in plan.evictions)
    return bool(plan.evictions) and freed >= model.blocks_needed(plan.request.request_id)


def _victims_are_right(model: BlockModel, plan: AdmissionPlan, *, victims_only: bool = False) -> None:
    """`victims_only`: the request may use only blocks and slots that its victims free."""
    head, victims = plan.request, [eviction.resident for eviction in plan.evictions]

    def short(without: list[Resident]) -> bool:
        if victims_only:
            return not without or sum(one.blocks for one in without) < model.blocks_needed(head.request_id)
        return _is_short(model, head, without)

    assert not short(victims), "the victims free too little"
    for spared in victims:
        assert short([one for one in victims if one is not spared]), "a victim is not needed"
    allowed = {resident.request_id for resident in _candidates(model, head)}
    assert {victim.request_id for victim in victims} <= allowed
    assert victims == sorted(victims, key=lambda one: _eviction_order(model, head, one))
    swapped = [each.resident for each in plan.evictions if each.strategy is Strategy.SWAP]
    bytes_per_token = model.admission.calibration.kv_bytes_per_token
    assert sum(one.kv_tokens * bytes_per_token for one in swapped) <= model.swap_bytes_free
    for eviction in plan.evictions:
        victim = eviction.resident
        assert eviction.exhausted == (victim.preemptions >= model.settings.preemptions_max)
        may_drop = eviction.exhausted or victim.tier in model.settings.may_drop
        assert may_drop or eviction.strategy is not Strategy.DROP


def _eviction_order(model: BlockModel, head: QueueRequest, one: Resident) -> tuple[float, ...]:
    """Lowest tier, then least progress, then fewest preemptions; within the head's tier the largest lead first."""
    lead = _counter(model, one.request_id) if one.tier is head.tier else 0.0
    return -one.tier.rank, -lead, one.generated, one.preemptions


def _candidates(model: BlockModel, head: QueueRequest) -> list[Resident]:
    settings, policy = model.settings, model.policy
    found: list[Resident] = []
    for one in map(model.resident, model.running.values()):
        often = one.preemptions >= settings.preemptions_max
        tier_state = policy.tier_state(one.request_id)
        entered = model.running[one.request_id].entered
        if entered or tier_state.for_share or (often and settings.at_limit == "promote") or not settings.preemption:
            continue
        below = one.tier.rank > head.tier.rank and tier_state.rank > policy.rank_of(head.request_id)
        ahead = _counter(model, one.request_id) - _counter(model, head.request_id)
        within = one.tier is head.tier and ahead > settings.lead_max
        if (below and head.tier is not Tier.BACKGROUND) or within:
            found.append(one)
    return found


def _counter(model: BlockModel, request_id: str) -> float:
    request = (model.waiting.get(request_id) or model.running[request_id]).request
    return model.ledger.counters[request.tier, request.tenant]


def _is_short(model: BlockModel, head: QueueRequest, without: list[Resident]) -> bool:
    free = model.blocks_free + sum(one.blocks for one in without)
    kept = 0 if head.tier in RESERVED_FOR else reserve_unused(model)
    return model.blocks_needed(head.request_id) > free - kept or model.slots_free + len(without) < 1


def reserve_unused(model: BlockModel) -> int:
    held = sum(live.blocks for live in model.running.values() if live.request.tier in RESERVED_FOR)
    return max(0, ceil(model.settings.premium_reserve * model.blocks_total) - held)


def _urgency(model: BlockModel, head: QueueRequest) -> tuple[float, ...]:
    """The system tier, promoted requests, tiers furthest behind relative to their shares, then effective rank."""
    policy, shares, tier_state = model.policy, model.policy.shares, model.policy.tier_state(head.request_id)
    if head.tier is Tier.SYSTEM:
        return (0.0,)
    if tier_state.promoted(model.settings):
        return 1.0, head.tier.rank
    if shares.behind(head.tier) > model.settings.share_slack and model.settings.share(head.tier):
        return 2.0, -shares.behind(head.tier) / model.settings.share(head.tier), head.tier.rank
    return 3.0, policy.rank_of(head.request_id), head.tier.rank
