"""VTC with a cap on each tenant's part of the batch: whom it picks, and what it never lets happen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.vtc_capped import CappedTokenCounter
from tests.support.queue_calls import Call, Story, calls


@settings(max_examples=200, deadline=None)
@given(story=calls, cap=st.integers(1, 80))
def test_next_is_the_lowest_counter_of_those_below_the_cap(story: list[Call], cap: int) -> None:
    """Against a scan of everybody who waits, after every call."""
    policy = CappedTokenCounter(cap)
    run = Story(policy)
    for number, call in enumerate(story):
        run.tell(number, call)
        may = [tenant for tenant in policy._queues if fits(policy, tenant, cap)]
        expected = min(may, key=lambda tenant: (policy.counter(tenant), tenant), default=None)
        head = policy.peek()
        assert (None if head is None else head.tenant) == expected


def fits(policy: CappedTokenCounter, tenant: str, cap: int) -> bool:
    mine = [held for held in policy._running.values() if held.request.tenant == tenant]
    head = policy._queues[tenant].head()
    outputs = [(held.request.output_tokens, policy._output_now(held)) for held in mine]
    outputs.append((head.request.output_tokens, head.output_tokens))
    inputs = sum(held.request.input_tokens for held in (*mine, head))
    return not mine or inputs + sum(now if known is None else known for known, now in outputs) <= cap


def test_where_outputs_are_known_nobody_has_more_than_the_cap() -> None:
    policy = CappedTokenCounter(100)
    for number in range(10):
        policy.enqueue(QueueRequest(f"a{number}", "a", 20, output_tokens=10))
        policy.enqueue(QueueRequest(f"b{number}", "b", 150, output_tokens=10))
    admitted = []
    while (head := policy.peek()) is not None:
        admitted.append(policy.admit(head.request_id).tenant)
    assert sorted(admitted) == ["a", "a", "a", "b"], "three of 30, and one larger than the cap: else it never would"
    assert (policy.batch_tokens("a"), policy.batch_tokens("b")) == (90, 160)
    policy.decoded(10)
    assert policy.batch_tokens("a") == 90
    policy.finish("a0")
    head = policy.peek()
    assert head is not None
    assert head.request_id == "a3"


def test_where_they_are_not_known_what_was_generated_counts() -> None:
    policy = CappedTokenCounter(50)
    for number in range(3):
        policy.enqueue(QueueRequest(f"a{number}", "a", 20))
    policy.admit("a0")
    assert policy.peek() is not None
    policy.decoded(11)
    assert policy.peek() is None
    policy.finish("a0")
    assert policy.peek() is not None


def test_a_charge_that_is_returned_makes_its_tenant_next_again() -> None:
    policy = CappedTokenCounter(100)
    for request_id in ("a0", "a1", "a2"):
        policy.enqueue(QueueRequest(request_id, "a", 20, output_tokens=1))
    policy.enqueue(QueueRequest("b0", "b", 20, output_tokens=1))
    policy.admit("a0")
    policy.admit("b0")
    assert policy.peek() is not None, "looked at with the charge"
    policy.undo_admit("a0")
    head = policy.peek()
    assert head is not None
    assert head.request_id == "a0"
