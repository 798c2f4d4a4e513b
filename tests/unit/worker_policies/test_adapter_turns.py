"""Which requests with adapters pass one that waits for the place of its adapter."""

from __future__ import annotations

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.adapters import AdapterTurns
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.tiered import TieredQueue, make_queue


def queue_of(lead: float, policy: str = "tiered:vtc") -> TieredQueue:
    queue = make_queue(policy, {"adapter_lead": lead})
    assert isinstance(queue, TieredQueue)
    return queue


def put(queue: TieredQueue, name: str, tenant: str, tokens: int = 10, tier: Tier = Tier.STANDARD) -> QueueRequest:
    request = QueueRequest(name, tenant, tokens, tier=tier)
    queue.enqueue(request)
    return request


def test_a_tenant_passes_up_to_the_lead() -> None:
    queue = queue_of(100.0)
    waits, near, far = put(queue, "b", "b"), put(queue, "a", "a", 100), put(queue, "c", "c", 101)
    for request in (near, far):
        queue.admit(request.request_id)
    turns = AdapterTurns(queue, queue.settings.adapter_lead)
    assert turns.may_pass(far, lacks_place=False), "no request waits for a place yet"
    assert turns.may_pass(waits, lacks_place=True)
    queue.admit("b")  # the engine skips it: its charge does not count
    assert turns.may_pass(near, lacks_place=False)
    assert not turns.may_pass(far, lacks_place=False)
    assert turns.may_pass(put(queue, "b2", "b"), lacks_place=False), "its own tenant's order is its own affair"
    turns.begin_pass()
    assert turns.may_pass(far, lacks_place=False)


def test_only_more_urgent_tiers_pass_without_a_bound() -> None:
    queue = queue_of(1e9)
    turns = AdapterTurns(queue, queue.settings.adapter_lead)
    turns.may_pass(put(queue, "s", "s"), lacks_place=True)
    assert turns.may_pass(put(queue, "p", "p", tier=Tier.PREMIUM), lacks_place=False)
    assert not turns.may_pass(put(queue, "b", "b", tier=Tier.BACKGROUND), lacks_place=False)


def test_a_policy_without_counters_sets_no_bound() -> None:
    queue = queue_of(0.0, "tiered:fcfs")
    turns = AdapterTurns(queue, queue.settings.adapter_lead)
    turns.may_pass(put(queue, "s", "s"), lacks_place=True)
    assert turns.may_pass(put(queue, "o", "o", 1000), lacks_place=False)
