"""Adapted deficit round robin against its rounds played one by one, and against VTC for a tiny quantum."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.drr import DeficitRoundRobin
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
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
