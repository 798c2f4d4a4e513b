"""The rules of every queue policy in random sequences of calls, under every service function."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.service import SERVICE_FUNCTIONS, service_function
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from tests.support.queue.calls import Call, Story, calls, counters, every_policy

TENANTS = [f"t{number}" for number in range(5)]
every_service = pytest.mark.parametrize("service", sorted(SERVICE_FUNCTIONS))


def about(values: dict[str, float]) -> object:
    return pytest.approx(values, rel=1e-9, abs=1e-6)


@every_policy
@every_service
@settings(max_examples=12, deadline=None)
@given(story=calls)
def test_several_steps_at_once_charge_as_their_tokens_one_by_one(name: str, service: str, story: list[Call]) -> None:
    at_once = make_policy(name, service_function(service))
    inner = make_policy(name, service_function(service))
    both = Story(at_once, inner)
    for number, call in enumerate(story):
        both.apply(number, call)
        assert counters(at_once, TENANTS) == about(counters(inner, TENANTS))
    assert {tenant: got.service for tenant, got in at_once.received.items()} == about(
        {tenant: got.service for tenant, got in inner.received.items()}
    )
    assert {tenant: got.output_tokens for tenant, got in at_once.received.items()} == {
        tenant: got.output_tokens for tenant, got in inner.received.items()
    }


@every_policy
@settings(max_examples=30, deadline=None)
@given(story=calls)
def test_the_same_calls_give_the_same_order(name: str, story: list[Call]) -> None:
    runs = [Story(make_policy(name, random=Random(7))) for _ in range(2)]
    for number, call in enumerate(story):
        for run in runs:
            run.apply(number, call)
    assert runs[0].admitted == runs[1].admitted


@every_policy
@settings(max_examples=30, deadline=None)
@given(story=calls)
def test_no_request_is_lost_or_there_twice(name: str, story: list[Call]) -> None:
    policy = make_policy(name)
    run = Story(policy)
    for number, call in enumerate(story):
        run.apply(number, call)
        assert (policy.waiting, policy.running) == (len(run.waiting), len(run.running))
        assert sum(policy.waiting_of(tenant) for tenant in TENANTS) == len(run.waiting)
        head = policy.peek()
        assert head is None or head.request_id in run.waiting
    for _ in range(len(run.waiting) + 1):
        run.admit()
        for request_id in list(run.running):
            run.end(request_id)
    assert len(run.ended) == len(set(run.ended))
    assert (policy.waiting, policy.running, policy.peek()) == (0, 0, None)


@every_policy
@settings(max_examples=30, deadline=None)
@given(story=calls)
def test_a_waiting_request_is_next_if_nothing_runs(name: str, story: list[Call]) -> None:
    """And also if requests run, except with a cap on each tenant's part of the batch."""
    policy = make_policy(name)
    run = Story(policy)
    for number, call in enumerate(story):
        run.apply(number, call)
        if run.waiting and not (run.running and name.startswith("vtc-cap")):
            assert policy.peek() is not None


@every_policy
@every_service
@settings(max_examples=10, deadline=None)
@given(story=calls, tokens=st.integers(0, 9))
def test_an_undone_admission_leaves_no_charge(name: str, service: str, story: list[Call], tokens: int) -> None:
    policy = make_policy(name, service_function(service))
    run = Story(policy)
    for number, call in enumerate(story):
        run.apply(number, call)
    before = counters(policy, TENANTS), {tenant: got.service for tenant, got in policy.received.items()}
    head = policy.peek()
    if head is None or head.request_id in run.admitted:
        return  # a preempted request keeps its charges
    policy.admit(head.request_id)
    policy.on_generated(head.request_id, tokens)
    policy.undo_admit(head.request_id)
    assert counters(policy, TENANTS) == about(before[0])
    assert {tenant: got.service for tenant, got in policy.received.items()} == about(before[1])
    again = policy.peek()
    assert again is not None
    if again != head:  # a tie of counters or of DRR's rounds, except for rounding of the refund
        now, tie = counters(policy, TENANTS), float(name.partition(":")[2]) if "dlpm" in name or "drr" in name else 1e-6
        assert now[again.tenant] == pytest.approx(now[head.tenant], rel=1e-9, abs=tie)


@every_policy
def test_a_resumed_request_keeps_its_charges_when_the_admission_is_undone(name: str) -> None:
    policy = make_policy(name)
    policy.enqueue(QueueRequest("r", "t0", 10))
    policy.admit("r")
    policy.on_decoded(5)
    policy.preempt("r")
    before = counters(policy, ["t0"]), policy.received["t0"].service
    policy.admit("r")
    policy.undo_admit("r")
    assert (counters(policy, ["t0"]), policy.received["t0"].service) == before
    assert before[1] == 20


@every_policy
@every_service
@pytest.mark.parametrize("known", [None, 3, 12])
def test_preempted_or_not_a_request_costs_the_same(name: str, service: str, known: int | None) -> None:
    """It is alone, so that the counter lift has no effect."""
    costs = []
    for cut_at in ([], [4], [0, 4, 7]):
        policy = make_policy(name, service_function(service))
        policy.enqueue(QueueRequest("r", "t0", 10, 2.0, known))
        policy.admit("r")
        for step in range(9):
            if step in cut_at:
                policy.preempt("r")
                policy.admit("r")
            policy.on_decoded(1)
        running = counters(policy, ["t0"])
        policy.finish("r")
        costs.append((running, counters(policy, ["t0"]), policy.received["t0"].service))
    for cut in costs[1:]:
        assert cut[0] == about(costs[0][0])
        assert cut[1] == about(costs[0][1])
        assert cut[2] == pytest.approx(costs[0][2])
    assert costs[0][2] == pytest.approx(service_function(service)(10, 9))


@every_policy
@every_service
def test_counters_end_at_the_true_cost(name: str, service: str) -> None:
    """Whatever was predicted. WSC counts requests of usual size, and FCFS has no counters."""
    h = service_function(service)
    policy = make_policy(name, h, random=Random(3))
    for number, output_tokens in enumerate([3, 40, 1, 0, 17, 60, 2, 9]):
        policy.enqueue(QueueRequest(f"r{number}", "t0", 10, 4.0, output_tokens))
        policy.admit(f"r{number}")
        policy.on_decoded(output_tokens)
        policy.finish(f"r{number}")
    if counters(policy, ["t0"]) and "wsc" not in name:
        total = sum(h(10, output_tokens) for output_tokens in [3, 40, 1, 0, 17, 60, 2, 9])
        assert counters(policy, ["t0"])["t0"] == pytest.approx(total / 4.0)


@every_policy
@every_service
@settings(max_examples=12, deadline=None)
@given(story=calls)
def test_the_head_stays_for_as_many_steps_as_the_policy_says(name: str, service: str, story: list[Call]) -> None:
    policy = make_policy(name, service_function(service))
    run = Story(policy)
    for number, call in enumerate(story):
        run.apply(number, call)
        head, steps = policy.peek(), min(policy.steps_of_head(), 40)
        for _ in range(int(steps) if policy.waiting else 0):
            policy.on_decoded(1)
            assert policy.peek() == head


@every_policy
@pytest.mark.parametrize("known", [None, 3])
def test_the_head_stays_though_counters_rise(name: str, known: int | None) -> None:
    """Two tenants wait, and one runs: its counter overtakes the other's. Predictions of 3 tokens are passed. Requests
    that the policy ignores arrive meanwhile."""
    policy = make_policy(name)
    for number in range(6):
        policy.enqueue(QueueRequest(f"r{number}", f"t{number % 2}", 1 + 18 * (number % 2), 1.0, known))
    for _ in range(2):
        head = policy.peek()
        if head is not None:
            policy.admit(head.request_id)
    for request_id in policy.running_requests():
        if request_id == "r1":
            policy.finish(request_id)
    for number in range(40):
        head, steps = policy.peek(), min(policy.steps_of_head(), 10)
        for step in range(int(steps)):
            policy.on_decoded(1)
            for tenant in ("t0", "t1"):
                if policy.ignores_arrival_of(tenant):
                    policy.enqueue(QueueRequest(f"later-{number}-{step}-{tenant}", tenant, 1, 1.0, known))
            assert policy.peek() == head
        policy.on_decoded(1)


@every_policy
@every_service
@settings(max_examples=25, deadline=None)
@given(story=calls, tenant=st.sampled_from(TENANTS), steps=st.integers(1, 40))
def test_an_arrival_that_the_policy_ignores_may_be_reported_before_the_steps(
    name: str, service: str, story: list[Call], tenant: str, steps: int
) -> None:
    first, last = (make_policy(name, service_function(service), random=Random(7)) for _ in range(2))
    for policy in (first, last):
        run = Story(policy)
        for number, call in enumerate(story):
            run.apply(number, call)
    if not first.ignores_arrival_of(tenant):
        return
    head = first.peek()
    assert head is not None or not first.work_conserving
    first.enqueue(QueueRequest("late", tenant, 5, 1.0, 5))
    assert first.peek() == head
    first.on_decoded(steps)
    last.on_decoded(steps)
    last.enqueue(QueueRequest("late", tenant, 5, 1.0, 5))
    assert first.peek() == last.peek()
    assert counters(first, TENANTS) == about(counters(last, TENANTS))


def test_vtc_ignores_the_arrivals_of_waiting_tenants_and_fcfs_those_behind_any_request() -> None:
    vtc, fcfs = make_policy("vtc"), make_policy("fcfs")
    for policy in (vtc, fcfs):
        assert not policy.ignores_arrival_of("t0")
        policy.enqueue(QueueRequest("r0", "t0", 10))
    assert [vtc.ignores_arrival_of(tenant) for tenant in ("t0", "t1")] == [True, False]
    assert [fcfs.ignores_arrival_of(tenant) for tenant in ("t0", "t1")] == [True, True]
