"""A gate before workers of one request each: conservation, work, order; and the paper's workload as it is described."""

from __future__ import annotations

from math import inf
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.clocks import Share
from dispatcher.shard.alone import CostGate
from headgate.evidence.bwfq.cares import RUNS, measure
from headgate.evidence.bwfq.workload import (
    GATE_ORDERS,
    HELD,
    Scenario,
    is_batch,
    is_interactive,
    paper_workload,
    play,
    play_paper,
)
from headgate.simulator.gates.cluster import Change, ClusterRequest, run_cluster

requests = st.lists(
    st.builds(ClusterRequest, st.floats(0, 20), st.sampled_from("abc"), st.floats(0.1, 5.0), st.none(), st.none()),
    max_size=40,
).map(lambda found: sorted(found, key=lambda request: request.arrival_s))
CONSERVING = ("fcfs", "ratio+wake", "virtual-clock", "sfq", "bwfq")


@given(requests, st.integers(1, 4), st.sampled_from(CONSERVING))
def test_no_worker_is_idle_while_a_request_waits(sent: list[ClusterRequest], workers: int, order: str) -> None:
    run = run_cluster(CostGate(order, slots=workers), sent)
    spans = [(start, start + one.service_s) for start, one in zip(run.starts_s, sent, strict=True)]
    assert run.dispatched == len(sent)
    for one, (start, _) in zip(sent, spans, strict=True):
        assert start >= one.arrival_s
        running = sum(began <= start < ended for began, ended in spans)
        assert running <= workers
        if start > one.arrival_s:
            before = sum(began < start <= ended for began, ended in spans)
            assert before == workers


def test_first_come_first_served_by_hand() -> None:
    sent = [ClusterRequest(at, "a", 2.0) for at in (0.0, 0.5, 1.0, 1.5)]
    run = run_cluster(CostGate("fcfs", slots=2), sent)
    assert run.starts_s == [0.0, 0.5, 2.0, 2.5]
    assert (run.queued, run.waiting_most) == (2, 2)
    assert run.service(0.0, 1.0) == {"a": 1.5}


def test_what_has_not_started_by_the_end_has_no_start() -> None:
    run = run_cluster(CostGate("fcfs", slots=1), [ClusterRequest(0.0, "a", 5.0)] * 2, until_s=4.0)
    assert run.starts_s == [0.0, inf]
    assert (run.dispatched, run.completed(4.0)) == (1, 0)


def test_changes_are_made_at_their_time() -> None:
    run = run_cluster(CostGate("fcfs", slots=1), [ClusterRequest(0.0, "a", 10.0)] * 3, changes=[Change(3.0, workers=3)])
    assert run.starts_s == [0.0, 3.0, 3.0]


def test_arrivals_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="request 1 arrives at"):
        run_cluster(CostGate("fcfs", slots=1), [ClusterRequest(1.0, "a", 1.0), ClusterRequest(0.5, "a", 1.0)])


def test_the_workload_offers_its_load() -> None:
    for load in (0.2, 0.6):
        scenario = Scenario(load=load, duration_s=3000.0)
        offered = [
            sum(request.service_s for request in paper_workload(scenario, seed).requests) / scenario.duration_s / 80
            for seed in range(4)
        ]
        assert fmean(offered) == pytest.approx(load, rel=0.15)


def test_rates_service_times_and_bursts_are_the_papers() -> None:
    workload = paper_workload(Scenario(duration_s=1000.0), 1)
    interactive = [request for request in workload.requests if is_interactive(request)]
    batch = [request for request in workload.requests if is_batch(request)]
    assert 6.0 * 0.9 <= len(interactive) / 1000.0 / 10 <= 12.0 * 1.1
    assert all(0.05 <= request.service_s <= 0.12 for request in interactive)
    assert all(8.0 <= request.service_s <= 15.0 for request in batch)
    most_in_20_s = max(
        sum(at <= other.arrival_s < at + 20.0 for other in batch) for at in (request.arrival_s for request in batch)
    )
    assert most_in_20_s >= 40


def test_the_same_seed_gives_the_same_workload_and_the_same_runs() -> None:
    scenario = Scenario(duration_s=60.0)
    assert paper_workload(scenario, 3).requests == paper_workload(scenario, 3).requests
    assert paper_workload(scenario, 3).requests != paper_workload(scenario, 4).requests
    orders = (*GATE_ORDERS, HELD)
    assert play_paper((scenario, 3, orders)) == play_paper((scenario, 3, orders))


def test_held_requests_wait_only_for_a_credit() -> None:
    workload = paper_workload(Scenario(load=0.4, duration_s=60.0), 1)
    held = play(HELD, workload)
    assert any(
        released > request.arrival_s for released, request in zip(held.released_s, workload.requests, strict=True)
    )
    share = workload.credits()
    for sender in workload.senders:
        times = sorted(
            released
            for released, request in zip(held.released_s, workload.requests, strict=True)
            if request.tenant == sender.name
        )
        assert all(
            number <= share[sender.name].rate_per_s * at + 1e-6 for number, at in enumerate(times, 1)
        )  # fmt: skip


@pytest.mark.parametrize("name", ["weights", "overbooked", "stale", "stranded"])
def test_the_runs_that_decided_the_order_are_deterministic(name: str) -> None:
    assert name in RUNS
    assert measure((name, "bwfq", 1)) == measure((name, "bwfq", 1))


def test_shares_reach_the_gate() -> None:
    sent = [ClusterRequest(0.0, name, 1.0) for _ in range(40) for name in "ab"]
    run = run_cluster(
        CostGate("bwfq", slots=1), sent, share={"a": Share(3.0), "b": Share(1.0)}, until_s=20.0
    )  # fmt: skip
    shares = run.shares(4.0, 20.0)
    assert shares["a"] == pytest.approx(0.75, abs=0.07)
