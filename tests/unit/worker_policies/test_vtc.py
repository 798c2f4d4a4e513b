"""VTC beside its algorithm (tests/property/worker_policies): refunds, forgotten tenants, forged weights."""

from __future__ import annotations

import pytest

from gpu_worker.policies.fairness.accounting import ArrivalQueue
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.tiered import make_queue
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter


def enqueue(policy: VirtualTokenCounter, request_id: str, input_tokens: int = 10, weight: float = 1.0) -> None:
    """The first letter of the id is the tenant."""
    policy.enqueue(QueueRequest(request_id, request_id[0], input_tokens, weight))


def admit_next(policy: VirtualTokenCounter) -> str:
    head = policy.peek()
    assert head is not None
    policy.admit(head.request_id)
    return head.request_id


def test_a_refund_lowers_the_counter_among_others() -> None:
    policy = VirtualTokenCounter()
    for request_id in ("a1", "b1", "b2", "c1", "c2"):
        enqueue(policy, request_id, 10)
    assert [admit_next(policy) for _ in range(4)] == ["a1", "b1", "c1", "b2"]
    policy.undo_admit("b2")
    policy.undo_admit("b1")
    assert policy.counter("b") == 0
    assert [admit_next(policy) for _ in range(3)] == ["b1", "b2", "c2"]


@pytest.mark.parametrize("newcomers", [1, 3])
def test_absent_tenants_are_forgotten_and_the_lift_level_is_kept(newcomers: int) -> None:
    policy = VirtualTokenCounter()
    for number in range(1_000):
        policy.enqueue(QueueRequest(f"r{number}", f"t{number}", 10))
        policy.admit(f"r{number}")
        policy.finish(f"r{number}")
    assert len(policy._counters) < 200
    for number in range(newcomers):
        policy.enqueue(QueueRequest(f"n{number}", f"n{number}", 10))
        assert policy.counter(f"n{number}") == 10_000


def test_tenants_that_come_and_go_leave_no_heap_entries() -> None:
    policy = VirtualTokenCounter()
    enqueue(policy, "a1")
    enqueue(policy, "b0")
    admit_next(policy)
    enqueue(policy, "a2")
    for number in range(1_000):
        enqueue(policy, f"c{number}")
        policy.on_generated("a1", number + 1)
        policy.cancel(f"c{number}")
    assert policy._by_counter.entries() < 100


@pytest.mark.parametrize("policy", ["vtc", "wsc", "drr:512", "tiered:vtc"])
@pytest.mark.parametrize("forged", [1e-13, 1e-20, 1e-306, 5e-324, 1e300])
def test_a_forged_weight_harms_no_other_tenant(policy: str, forged: float) -> None:
    """After one request of it, a light tenant still goes before one that has received more."""
    queue = make_queue(policy)
    queue.enqueue(QueueRequest("forged", "evil", 8, forged), 0.0)
    queue.admit("forged")
    queue.on_generated("forged", 1)
    queue.finish("forged")
    for number in range(100):
        queue.enqueue(QueueRequest(f"heavy{number}", "a-heavy", 1000), 0.0)
        queue.enqueue(QueueRequest(f"light{number}", "b-light", 10), 0.0)
    served = {"a-heavy": 0, "b-light": 0}
    for _ in range(100):
        head = queue.peek()
        assert head is not None
        queue.admit(head.request_id)
        served[head.tenant] += 1
        queue.on_generated(head.request_id, 10)
        queue.finish(head.request_id)
    assert served["b-light"] > 3 * served["a-heavy"]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_a_positive_number(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        QueueRequest("a1", "a", 10, weight)


def test_leaving_from_the_middle_and_returning_to_the_old_place() -> None:
    queue: ArrivalQueue[str] = ArrivalQueue()
    for place in range(5):
        queue.add(place, f"m{place}")
    queue.remove(1)
    queue.remove(0)
    assert queue.head() == "m2"
    queue.add(1, "again")
    assert queue.head() == "again"
    assert len(queue) == 4


def test_stale_places_do_not_accumulate() -> None:
    queue: ArrivalQueue[str] = ArrivalQueue()
    queue.add(0, "stays")
    for place in range(1, 5_000):
        queue.add(place, "leaves")
        queue.remove(place)
    assert len(queue._places) < 50
    assert queue.head() == "stays"
