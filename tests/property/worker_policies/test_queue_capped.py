"""VTC with a cap on each tenant's part of the batch: the choice of the next tenant, and the cap."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.vtc_capped import CappedTokenCounter
from tests.support.queue.calls import Call, Story, calls


@settings(max_examples=200, deadline=None)
@given(story=calls, cap=st.integers(1, 80))
def test_next_is_the_lowest_counter_of_those_below_the_cap(story: list[Call], cap: int) -> None:
    """Compare with a scan of all waiting tenants after every call."""
    policy = CappedTokenCounter(cap)
    run = Story(policy)
    for number, call in enumerate(story):
        run.apply(number, call)
        may = [tenant for tenant in policy._queues if fits(policy, tenant, cap)]
        expected = min(may, key=lambda tenant: (policy.counter(tenant), tenant), default=None)
        head = policy.peek()
        assert (None if head is None else head.tenant) == expected


def fits(policy: CappedTokenCounter, tenant: str, cap: int) -> bool:
    mine = [record for record in policy._running.values() if record.request.tenant == tenant]
    head = policy._queues[tenant].head()
    outputs = [(record.request.output_tokens, policy._output_now(record)) for record in mine]
    outputs.append((head.request.output_tokens, head.output_tokens))
    inputs = sum(record.request.input_tokens for record in (*mine, head))
    return not mine or inputs + sum(now if known is None else known for known, now in outputs) <= cap


def test_with_known_outputs_no_tenant_exceeds_the_cap() -> None:
    policy = CappedTokenCounter(100)
    for number in range(10):
        policy.enqueue(QueueRequest(f"a{number}", "a", 20, output_tokens=10))
        policy.enqueue(QueueRequest(f"b{number}", "b", 150, output_tokens=10))
    admitted = []
    while (head := policy.peek()) is not None:
        admitted.append(policy.admit(head.request_id).tenant)
    assert sorted(admitted) == ["a", "a", "a", "b"], "three of 30, and one that is above the cap"
    assert (policy.batch_tokens("a"), policy.batch_tokens("b")) == (90, 160)
    policy.on_decoded(10)
    assert policy.batch_tokens("a") == 90
    policy.finish("a0")
    head = policy.peek()
    assert head is not None
    assert head.request_id == "a3"


def test_with_unknown_outputs_the_generated_tokens_count() -> None:
    policy = CappedTokenCounter(50)
    for number in range(3):
        policy.enqueue(QueueRequest(f"a{number}", "a", 20))
    policy.admit("a0")
    assert policy.peek() is not None
    policy.on_decoded(11)
    assert policy.peek() is None
    policy.finish("a0")
    assert policy.peek() is not None


def test_a_refund_makes_the_tenant_next_again() -> None:
    policy = CappedTokenCounter(100)
    for request_id in ("a0", "a1", "a2"):
        policy.enqueue(QueueRequest(request_id, "a", 20, output_tokens=1))
    policy.enqueue(QueueRequest("b0", "b", 20, output_tokens=1))
    policy.admit("a0")
    policy.admit("b0")
    assert policy.peek() is not None, "the heap has seen the charge"
    policy.undo_admit("a0")
    head = policy.peek()
    assert head is not None
    assert head.request_id == "a0"
