"""Which requests with adapters pass one that waits for the place of its adapter."""

from __future__ import annotations

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.adapters import PASSES_MAX, AdapterTurns
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


@pytest.mark.parametrize(("policy", "tenant"), [("tiered:fcfs", "o"), ("tiered:vtc", "s")])
def test_where_no_lead_tells_tenants_apart_so_many_pass(policy: str, tenant: str) -> None:
    queue = queue_of(0.0, policy)
    turns = AdapterTurns(queue, queue.settings.adapter_lead)
    waits = put(queue, "s", "s")
    for number in range(PASSES_MAX):
        turns.begin_pass()
        assert turns.may_pass(waits, lacks_place=True)
        later = put(queue, f"o{number}", tenant, 1000)
        assert turns.may_pass(later, lacks_place=False)
        turns.on_entered(put(queue, f"urgent{number}", "p", tier=Tier.PREMIUM))
        turns.on_entered(later)
    assert not turns.may_pass(put(queue, "last", tenant), lacks_place=False)
    assert turns.may_pass(waits, lacks_place=False)
    turns.begin_pass()
    turns.may_pass(put(queue, "other", "x"), lacks_place=True)
    assert turns.may_pass(put(queue, "new", "x"), lacks_place=False), "the count is of one request"
