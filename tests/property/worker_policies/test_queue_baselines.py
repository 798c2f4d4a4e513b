"""Other queue policies against their definitions: adapted deficit round robin, RPM(n), and VTC with a cap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness import baselines
from gpu_worker.policies.fairness.baselines import RequestsPerMinute
from gpu_worker.policies.fairness.drr import DeficitRoundRobin
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.fairness.vtc_capped import CappedTokenCounter
from tests.support.queue.calls import Call, Story, calls
from tests.support.queue.model import BatchModel, Job

lengths = st.tuples(st.integers(1, 24), st.integers(1, 12))

arrival = st.tuples(st.just("arrive"), st.integers(0, 5), lengths)

schedules = st.lists(st.one_of(arrival, st.tuples(st.just("step"), st.just(0), st.just((0, 0)))), max_size=80)


class PlayedRounds:
    """Appendix C.2 read literally, for tenants that all have waiting requests from the start."""

    def __init__(self, quantum: float, tenants: list[str]) -> None:
        self.quantum = quantum
        self.deficit = dict.fromkeys(sorted(tenants), 0.0)
        self.turn = 0
        self.refilled = False

    def pick(self, waiting: set[str]) -> str:
        names = list(self.deficit)
        while True:
            tenant = names[self.turn]
            if not self.refilled and self.deficit[tenant] <= 0:
                self.deficit[tenant] += self.quantum
            self.refilled = True
            if self.deficit[tenant] > 0 and tenant in waiting:
                return tenant
            self.turn, self.refilled = (self.turn + 1) % len(names), False


@settings(max_examples=100, deadline=None)
@given(jobs=st.lists(st.lists(lengths, min_size=3, max_size=15), min_size=2, max_size=4), quantum=st.integers(1, 60))
def test_the_same_order_as_the_rounds_played(jobs: list[list[tuple[int, int]]], quantum: int) -> None:
    policy = DeficitRoundRobin(float(quantum))
    model = BatchModel(policy, 80)
    for number, sizes in enumerate(jobs):
        for size in sizes:
            model.arrive(Job(f"t{number}", *size))
    played = PlayedRounds(float(quantum), [f"t{number}" for number in range(len(jobs))])
    while all(policy.waiting_of(tenant) for tenant in played.deficit):
        head = policy.peek()
        assert head is not None
        assert head.tenant == played.pick({tenant for tenant in played.deficit if policy.waiting_of(tenant)})
        if model._fits(head.request_id):
            policy.admit(head.request_id)
            model.running[head.request_id] = 0
            played.deficit[head.tenant] -= head.input_tokens
        else:
            for request_id in model.running:
                played.deficit[model.jobs[request_id].tenant] -= 2
            model.decode()


@settings(max_examples=100, deadline=None)
@given(schedule=schedules)
def test_with_a_tiny_quantum_it_orders_as_vtc_does(schedule: list[tuple[str, int, tuple[int, int]]]) -> None:
    """Its choice always has the lowest counter of VTC; ties may differ. Tenants join and leave."""
    policy, vtc = DeficitRoundRobin(2.0**-10), VirtualTokenCounter()
    model, shadow = BatchModel(policy, 80), BatchModel(vtc, 80)
    for call, number, size in schedule:
        if call == "arrive":
            job = Job(f"t{number}", *size, weight=2.0 ** (number % 3))
            model.arrive(job)
            shadow.arrive(job)
            continue
        while (head := policy.peek()) is not None and model._fits(head.request_id):
            lowest = min(vtc.counter(tenant) for tenant in vtc._queues)
            assert vtc.counter(head.tenant) - lowest < 0.2  # counters are multiples of a quarter
            for policy_, batch in ((policy, model), (vtc, shadow)):
                policy_.admit(head.request_id)
                batch.running[head.request_id] = 0
        model.decode()
        shadow.decode()


def test_a_large_quantum_serves_a_tenant_to_the_end_of_it() -> None:
    """So the two tests above do not pass with just any quantum."""
    policy = DeficitRoundRobin(40.0)
    model = BatchModel(policy, 10_000)
    for _ in range(8):
        model.arrive(Job("a", 10, 1))
        model.arrive(Job("b", 10, 1))
    order = [model.jobs[request_id].tenant for request_id in model.admit()]
    assert "".join(order) == "aaaabbbb" * 2


arrivals = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 7.0, 20.0, 59.5, 60.0, 61.0])), max_size=80)


@settings(max_examples=200, deadline=None)
@given(arrivals=arrivals, most=st.integers(1, 4))
def test_at_most_n_of_a_tenant_in_a_trailing_minute_and_no_fewer(arrivals: list[tuple[int, float]], most: int) -> None:
    policy = RequestsPerMinute(most)
    accepted: dict[str, list[float]] = {}
    now_s = 0.0
    for number, (tenant_number, later_s) in enumerate(arrivals):
        now_s += later_s
        tenant = f"t{tenant_number}"
        times = accepted.setdefault(tenant, [])
        below_limit = len([time for time in times if now_s - 60 < time]) < most
        assert policy.enqueue(QueueRequest(f"r{number}", tenant, 1), now_s) == below_limit
        assert policy.holds(f"r{number}") == below_limit
        if below_limit:
            times.append(now_s)
    assert policy.waiting == sum(len(times) for times in accepted.values())


def test_a_refused_request_leaves_nothing_behind() -> None:
    policy = RequestsPerMinute(1)
    assert policy.enqueue(QueueRequest("r0", "a", 1), 0.0)
    assert not policy.enqueue(QueueRequest("r1", "a", 1), 1.0)
    policy.cancel("r0")
    assert not policy.enqueue(QueueRequest("r1", "a", 1), 59.9), "the cancelled request was accepted and counts"
    assert (policy.waiting, policy.peek()) == (0, None)
    assert policy.enqueue(QueueRequest("r1", "a", 1), 60.0)


def test_empty_minutes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RequestsPerMinute(2)
    for number in range(50):
        policy.enqueue(QueueRequest(f"r{number}", f"t{number}", 1), float(number))
    policy.enqueue(QueueRequest("late", "late", 1), 109.0)
    assert list(policy._accepted_s) == ["late"]
    monkeypatch.setattr(baselines, "WINDOWS_KEPT_MAX", 5)
    for number in range(20):
        policy.enqueue(QueueRequest(f"s{number}", f"t{number}", 1), 110.0)
    assert len(policy._accepted_s) <= 6


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
