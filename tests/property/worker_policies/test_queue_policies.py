"""VTC against the paper: the same schedule as Algorithm 2 read literally, Lemma 4.3, Theorem 4.4, and no starvation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_worker.policies.fairness.accounting as heap_module
import gpu_worker.policies.fairness.vtc as vtc_module
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from headgate.evidence.vtc.theorems import THEOREMS, adversary, random_specs
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload
from tests.support.queue.model import BatchModel, Job, LiteralVtc

INPUT_MAX, OUTPUT_MAX, POOL = 24, 12, 80

U = max(1 * INPUT_MAX, 2 * POOL)
"""Equation (2): max(w_p L_input, w_q M)."""

lengths = st.tuples(st.integers(1, INPUT_MAX), st.integers(1, OUTPUT_MAX))

arrival = st.tuples(st.just("arrive"), st.integers(0, 5), lengths)

step = st.tuples(st.just("step"), st.booleans(), st.none())

cancel = st.tuples(st.just("cancel"), st.integers(0, 30), st.none())

schedules = st.lists(st.one_of(arrival, arrival, step, step, cancel), max_size=80)


@settings(max_examples=200, deadline=None)
@given(schedule=schedules)
def test_the_same_schedule_as_algorithm_2_read_literally(schedule: list[tuple[str, int, tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap_module, "SLACK", 0)
        patch.setattr(vtc_module, "SLACK", 0)  # forget tenants and clean the heap at every opportunity
        policy, literal = VirtualTokenCounter(), LiteralVtc()
        policy._forget_above = 0
        model = BatchModel(policy, POOL)
        for call, number, size in schedule:
            if call == "arrive":
                job = Job(f"t{number}", *size, weight=2.0 ** (number % 3))
                literal.arrive(model.arrive(job), job)
            elif call == "step":
                step_both(model, literal, undo_last_admit=bool(number))
            elif literal.q:
                request_id = literal.q[number % len(literal.q)][0]
                policy.cancel(request_id)
                literal.remove(request_id)
            head = policy.peek()
            assert (head.request_id if head else None) == literal.pick()
            waiting = {tenant for _, tenant in literal.q}
            assert {tenant: policy.counter(tenant) for tenant in waiting} == {t: literal.c[t] for t in waiting}


def step_both(model: BatchModel, literal: LiteralVtc, *, undo_last_admit: bool) -> None:
    admitted = model.admit()
    for request_id in admitted:
        assert literal.pick() == request_id
        literal.admit(request_id)
    if undo_last_admit and admitted:
        model.undo_admit(admitted[-1])
        literal.undo_admit(admitted[-1])
    before = set(model.running)
    model.decode()
    for request_id in before:
        literal.decode(request_id)
    for request_id in before - set(model.running):
        literal.finish(request_id)


@settings(max_examples=150, deadline=None)
@given(schedule=schedules)
def test_lemma_4_3_counters_of_waiting_tenants_stay_together(schedule: list[tuple[str, int, tuple[int, int]]]) -> None:
    policy = VirtualTokenCounter()
    model = BatchModel(policy, POOL)
    for call, number, size in schedule:
        if call == "arrive":
            model.arrive(Job(f"t{number}", *size))
        elif call == "step":
            model.step()
        counters = [policy.counter(tenant) for tenant in policy._queues]
        assert not counters or max(counters) - min(counters) <= U


def assert_fair(
    policy: QueuePolicy, jobs: list[list[tuple[int, int]]], weights: tuple[float, ...], bound: float
) -> None:
    """Theorem 4.4: over any interval in which two tenants wait, their service by weight differs by at most `bound`."""
    model = BatchModel(policy, POOL)
    for number, (tenant_jobs, weight) in enumerate(zip(jobs, weights, strict=True)):
        for size in tenant_jobs:
            model.arrive(Job(f"t{number}", *size, weight=weight))
    tenants = [f"t{number}" for number in range(len(jobs))]
    history: list[dict[str, float]] = []
    while all(policy.waiting_of(tenant) for tenant in tenants):
        history.append({t: model.service(t) / w for t, w in zip(tenants, weights, strict=True)})
        model.step()
    for one, other in pairwise(tenants):
        gaps = [served[one] - served[other] for served in history]
        assert max(gaps) - min(gaps) <= bound


some_jobs = st.lists(lengths, min_size=8, max_size=40)


@settings(max_examples=100, deadline=None)
@given(jobs=st.lists(some_jobs, min_size=2, max_size=4))
def test_theorem_4_4_backlogged_tenants_receive_the_same(jobs: list[list[tuple[int, int]]]) -> None:
    assert_fair(VirtualTokenCounter(), jobs, (1.0,) * len(jobs), 2 * U)


@settings(max_examples=60, deadline=None)
@given(jobs=st.lists(some_jobs, min_size=4, max_size=4))
def test_theorem_4_4_by_weight(jobs: list[list[tuple[int, int]]]) -> None:
    """Section 4.3; the bound is that of the smallest weight."""
    assert_fair(VirtualTokenCounter(), jobs, (1.0, 2.0, 3.0, 4.0), 2 * U / 1.0)


def test_the_share_test_fails_an_unfair_policy() -> None:
    """First come, first served gives everything to the first flood."""
    flood = [(INPUT_MAX, OUTPUT_MAX)] * 60
    assert_fair(VirtualTokenCounter(), [flood, flood], (1.0, 1.0), 2 * U)
    with pytest.raises(AssertionError):
        assert_fair(make_policy("fcfs"), [flood, flood], (1.0, 1.0), 2 * U)


def test_shares_are_in_proportion_to_the_weights() -> None:
    policy, weights = VirtualTokenCounter(), (1.0, 2.0, 3.0, 4.0)
    model = BatchModel(policy, POOL)
    for _ in range(1_500):
        for number, weight in enumerate(weights):
            model.arrive(Job(f"t{number}", 8, 4, weight))
    for _ in range(1_000):
        model.step()
    assert all(policy.waiting_of(f"t{number}") for number in range(4)), "all tenants were always backlogged"
    total = sum(model.service(f"t{number}") for number in range(4))
    for number, weight in enumerate(weights):
        assert model.service(f"t{number}") / total == pytest.approx(weight / 10, rel=0.01)


@settings(max_examples=80, deadline=None)
@given(
    flood=st.lists(st.tuples(st.integers(0, 3), lengths), min_size=40, max_size=80), at=st.integers(0, 20), mine=lengths
)
def test_no_tenant_starves_behind_a_flood(
    flood: list[tuple[int, tuple[int, int]]], at: int, mine: tuple[int, int]
) -> None:
    """Under an endless flood, no tenant receives more than 2 U before the newcomer is admitted."""
    model = BatchModel(VirtualTokenCounter(), POOL)
    for number, size in flood:
        model.arrive(Job(f"t{number}", *size))
    for _ in range(at):
        model.step()
        model.arrive(Job("t0", *flood[0][1]))
    newcomer = model.arrive(Job("new", *mine))
    before = {f"t{number}": model.service(f"t{number}") for number in range(4)}
    while newcomer not in model.admitted:
        for number, size in flood[:4]:
            model.arrive(Job(f"t{number}", *size))
        model.step()
        assert all(model.service(tenant) - served <= 2 * U for tenant, served in before.items())


PROFILE = load_profile()

arrivals = st.builds(Arrival, st.floats(0, 30), st.sampled_from("abcde"), st.integers(1, 300), st.integers(0, 300))

weights = st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1.0, 2.0, 10.0]))

profiles = st.builds(
    lambda pool, steps: PROFILE.model_copy(update={"pool_tokens": pool, "steps_between_admissions": steps}),
    st.integers(700, 4000),
    st.integers(1, 20),
)


@given(st.lists(arrivals, min_size=2, max_size=60), weights, profiles, st.sampled_from([0.0, 0.3]))
@settings(max_examples=150)
def test_all_theorems_hold(
    arriving: list[Arrival], weights: dict[str, float], profile: EngineProfile, jitter: float
) -> None:
    workload = ListWorkload("random", sorted(arriving, key=lambda arrival: arrival.arrival_s))
    bounds = simulate(RunSpec(workload, "vtc", profile, weights=weights, jitter=jitter)).bounds
    assert list(bounds) == list(THEOREMS)
    assert {theorem: bound for theorem, bound in bounds.items() if not bound["held"]} == {}


def test_the_lemma_fails_somewhere_with_the_pool_size_as_m() -> None:
    """The reason to measure M: admission by the peak of future use overbooks the pool."""
    specs = [replace(spec, seed=0) for spec in random_specs(False, "vtc")]
    longest = [max(arrival.input_tokens for arrival in spec.workload) for spec in specs]
    runs = [simulate(spec) for spec in specs]
    apart = [run.bounds["4.3"]["worst"] for run in runs]
    with_pool = [max(input_max, 2.0 * run.pool_tokens) for input_max, run in zip(longest, runs, strict=True)]
    assert any(worst > unit for worst, unit in zip(apart, with_pool, strict=True))
    assert all(run.bounds["4.3"]["held"] for run in runs)


@given(st.integers(2, 300), st.integers(20, 400))
def test_the_adversary_nearly_reaches_the_bound(requests: int, tokens: int) -> None:
    pool_tokens = requests * tokens + 1 + PROFILE.tenant_tokens
    profile = PROFILE.model_copy(update={"pool_tokens": pool_tokens, "minibatch_tokens_max": pool_tokens})
    workload = adversary(profile, requests)
    outputs = sum(arrival.output_tokens for arrival in workload if not arrival.arrival_s)
    reached = simulate(RunSpec(workload, "vtc", profile)).bounds["4.4"]["worst"]
    assert reached >= 0.95 * 2 * outputs
