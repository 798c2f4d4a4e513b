"""The fleet in virtual time: every request ends once, swaps take their time, and the same run gives the same value."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.planning.plan import Plan, make_plan
from dispatcher.shard.alone import EPOCH
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.fleet.planners import plan
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.run import check_fleet_run
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerOutage, WorkerSpec
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload
from tests.support.simulator.fleets import fleet_of, requests_of

ROWS = st.tuples(
    st.floats(0, 60),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["interactive", "normal", "batch"]),
    st.integers(1, 200),
)


@pytest.mark.parametrize("planner", sorted(PLANNERS))
@given(
    st.lists(ROWS, min_size=1, max_size=40),
    st.integers(1, 3),
    st.sampled_from([1.0, 5.0, 30.0]),
    st.lists(st.floats(0, 60), max_size=2, unique=True),
)
@settings(max_examples=25, deadline=None)
def test_every_request_ends_once(
    planner: str, rows: list[tuple[float, str, str, str, int]], workers: int, drain_s: float, failures: list[float]
) -> None:
    fleet = fleet_of(workers, "abc", drain_s=drain_s)
    gone = tuple(WorkerOutage(fleet.workers[place % workers].name, at_s, 4.0) for place, at_s in enumerate(failures))
    if workers > 1 or len(gone) < 2:
        fleet = replace(fleet, failures=gone)
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet, planner=planner))
    assert run.all.requests == len(rows)
    if planner != "static-seen" and (planner != "static" or workers == 3):
        assert run.all.served == len(rows)
    assert sum(part.requests for part in run.classes.values()) == len(rows)
    assert sum(part.requests for part in run.tenants.values()) == len(rows)
    assert run.swapping_s == 2.0 * run.swaps


def test_no_plan_is_made_while_all_workers_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fail at 5 s and load again from 105 s on, for 2 s. Then the waiting requests are served."""
    planned_s = []

    def noted(backlogs: Any, workers: Any, now: float, **options: Any) -> Plan:
        planned_s.append(now - EPOCH)
        return make_plan(backlogs, workers, now, **options)

    monkeypatch.setattr(plan, "make_plan", noted)
    fleet = fleet_of(2, "abc")
    fleet = replace(fleet, failures=tuple(WorkerOutage(worker.name, 5.0, 100.0) for worker in fleet.workers))
    rows = [(0.3 * n, "xy"[n % 2], "abc"[n % 3], "normal", 20) for n in range(40)]
    assert simulate(RunSpec(requests_of(rows), "fcfs", fleet, planner="plan")).all.served == len(rows)
    assert [at_s for at_s in planned_s if 5.0 < at_s < 107.0] == []
    assert min(planned_s) < 5.0 < 107.0 < max(planned_s)


def only_worker_of_c(away_s: float) -> FleetSpec:
    """Return two workers, of which only the second can load c. It is gone from 5 s on."""
    fleet = fleet_of(2, "abc")
    first, second = fleet.workers
    first = replace(first, models={name: able for name, able in first.models.items() if name != "c"})
    return replace(fleet, workers=[first, second], failures=(WorkerOutage(second.name, 5.0, away_s),))


def test_no_plan_is_made_while_no_worker_can_serve_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker serves all that it can in some seconds, and what remains is for the second one. A plan every two
    seconds would be 50,000 plans."""
    planned_s = []

    def noted(backlogs: Any, workers: Any, now: float, **options: Any) -> Plan:
        planned_s.append(now - EPOCH)
        return make_plan(backlogs, workers, now, **options)

    monkeypatch.setattr(plan, "make_plan", noted)
    rows = [(0.3 * n, "xy"[n % 2], "abc"[n % 3], "normal", 20) for n in range(40)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", only_worker_of_c(100_000.0), planner="plan"))
    assert run.all.served == len(rows)
    assert 5 < len(planned_s) < 50
    assert min(planned_s) < 5.0


@pytest.mark.parametrize("planner", ["plan", "no-plan"])
def test_a_worker_that_is_back_after_an_outage_swaps_as_soon_as_before(planner: str) -> None:
    """An outage of 2,000 s counted as a swap of 2,000 s, which a model is kept for. Back at 2,007 s the worker has b,
    for which requests wait too."""
    rows = [(0.3 * n, "xy"[n % 2], "abc"[n % 3], "normal", 20) for n in range(40)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", only_worker_of_c(2000.0), planner=planner))
    assert run.all.ttft_s is not None
    assert run.all.ttft_s.p99 < 2000.0 + 60.0


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_the_same_run_again(planner: str) -> None:
    rows = [(0.3 * n, "xy"[n % 2], "abc"[n % 3], ("interactive", "batch")[n % 2], 20 + 7 * n % 60) for n in range(90)]
    spec = RunSpec(requests_of(rows), "fcfs", fleet_of(2, "abc"), planner=planner)
    assert simulate(spec) == simulate(spec)


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_one_model_that_is_loaded_needs_no_swap(planner: str) -> None:
    fleet = fleet_of(2, "a")
    loaded = replace(fleet, workers=[replace(worker, loaded="a") for worker in fleet.workers])
    run = simulate(RunSpec(requests_of([(0.0, "x", "a", "normal", 10)] * 20), "fcfs", loaded, planner=planner))
    assert (run.swaps, run.all.served, run.all.in_time) == (0, 20, 1.0)
    assert run.total_time_s == pytest.approx(3 * 1.0, abs=0.3)  # three batches of ten tokens


@pytest.mark.parametrize("late", ["a", "b"])
def test_a_partition_of_what_was_seen_does_not_know_what_comes(late: str) -> None:
    """In the first 15 s `a` is requested more often than `b`. What comes later is refused if it is for `b`."""
    seen = [(0.0, "x", "a", "normal", 10), (1.0, "x", "a", "normal", 10), (2.0, "x", "b", "normal", 10)]
    rows = [*seen, *[(20.0 + at, "y", late, "normal", 10) for at in range(50)]]
    fleet = fleet_of(1)
    one = replace(fleet, workers=[replace(worker, loaded="a") for worker in fleet.workers])
    run = simulate(RunSpec(requests_of(rows), "fcfs", one, planner="static-seen"))
    assert (run.swaps, run.tenants["x"].served) == (0, 2)
    assert run.rejections == {"no_worker": 1 if late == "a" else 51}
    knowing = simulate(RunSpec(requests_of(rows), "fcfs", one, planner="static"))
    assert knowing.tenants["y"].served == 50


def test_without_announced_waits_a_fleet_does_the_same() -> None:
    rows = [(0.2 * n, "xy"[n % 2], "abc"[n % 3], "interactive", 20 + 7 * n % 60) for n in range(120)]
    spec = RunSpec(requests_of(rows), "fcfs", fleet_of(2, "abc"), planner="plan")
    usual, without = simulate(spec), simulate(replace(spec, gate=GateSpec(1, announces_waits=False)))
    assert usual.waits is not None
    assert without.waits is not None
    assert usual.waits.announced == usual.waits.queued == without.waits.queued > 0
    assert without.waits.announced == 0
    assert replace(without, waits=usual.waits, order=usual.order) == usual


def test_a_swap_waits_for_what_runs() -> None:
    rows = [(0.0, "x", "a", "normal", 50), (1.0, "x", "b", "normal", 10)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner="fcfs"))
    # 2 s to load a, 5 s for its request, 2 s to load b, 0.1 s for the first token of b
    assert run.tenants["x"].ttft_s is not None
    assert run.tenants["x"].ttft_s.p99 == pytest.approx(9.1 - 1.0)
    assert run.swaps == 2
    assert run.total_time_s == pytest.approx(10.0)


def test_a_swap_returns_what_runs_too_long_and_it_goes_on_later() -> None:
    rows = [(0.0, "x", "a", "normal", 100), (3.0, "y", "b", "normal", 10)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1, drain_s=4.0), planner="fcfs"))
    # a loads until 2 and generates 49 tokens by 7; b loads until 9 and ends at 10; a loads until 12 and goes on
    assert run.swaps == 3
    assert run.total_time_s == pytest.approx(12.0 + 5.1, abs=0.11)
    assert run.all.served == 2
    first = run.tenants["x"].ttft_s
    assert first is not None
    assert first.p99 == pytest.approx(2.1)  # of its first attempt: the caller has had it


def test_a_request_that_fits_no_engine_is_refused() -> None:
    rows = [(0.0, "x", "a", "normal", 5000), (0.0, "x", "a", "normal", 5)]
    for planner in PLANNERS:
        run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner=planner))
        assert (run.all.requests, run.all.served, run.all.in_time) == (2, 1, 0.5)


def test_static_refuses_models_without_a_worker() -> None:
    rows = [(0.0, "x", "a", "normal", 100)] * 5 + [(0.0, "y", "b", "normal", 1)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner="static"))
    assert (run.tenants["x"].served, run.tenants["y"].served, run.swaps) == (5, 0, 1)


def test_static_gives_further_workers_to_the_greatest_demand() -> None:
    rows = [(0.0, "x", "a", "normal", 100)] * 12 + [(0.0, "y", "b", "normal", 10)] * 4
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(4), planner="static"))
    assert run.total_time_s == pytest.approx(2.0 + 10.0)  # three workers of four slots run all of x at once


def test_shepherd_runs_a_batch_to_its_end_before_the_next() -> None:
    rows = [(0.0, "x", "a", "normal", 40), (0.0, "x", "a", "normal", 5), (2.5, "y", "a", "normal", 5)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner="shepherd"))
    first = run.tenants["y"].ttft_s
    assert first is not None
    assert first.p50 == pytest.approx(2.0 + 4.0 + 0.1 - 2.5, abs=0.15)  # other planners give it a free slot at once
    assert run.total_time_s == pytest.approx(6.6, abs=0.15)


def test_shepherd_preempts_for_a_batch_of_three_times_the_value() -> None:
    rows = [(0.0, "x", "a", "normal", 100)] + [(5.0, "y", "b", "normal", 100)] * 4
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner="shepherd"))
    first = run.tenants["y"].ttft_s
    assert first is not None
    assert first.p99 == pytest.approx(2.1, abs=0.1)  # a swap at once, without the ten seconds that x still needs
    assert run.all.served == 5


def test_qlm_swaps_once_for_a_group_and_not_for_each_request() -> None:
    rows = [(0.1 * n, "x", "ab"[n % 2], "normal", 20) for n in range(40)]
    fcfs, qlm = (simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner=name)) for name in ("fcfs", "qlm"))
    assert qlm.swaps <= 4 < fcfs.swaps
    assert qlm.requests_per_s > fcfs.requests_per_s


def test_qlm_serves_the_group_that_is_due_first() -> None:
    rows = [(0.0, "x", "a", "batch", 50)] * 30 + [(1.0, "y", "b", "interactive", 5)] * 4
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner="qlm"))
    assert run.classes["interactive"].in_time == run.classes["batch"].in_time == 1.0


def test_plan_keeps_a_tenant_within_its_share_in_time_beside_a_flood() -> None:
    flood = [(0.05 * n, "flood", "a", "interactive", 200) for n in range(1200)]
    quiet = [(1.0 * n, "quiet", "a", "interactive", 200) for n in range(60)]
    able = {"a": Loadable(load_profile("a100-llama2-13b"), 2.0, 70)}  # about eight of these requests per second
    fleet = FleetSpec([WorkerSpec("w", "k", able)])
    qlm, plan = (
        simulate(RunSpec(requests_of([*flood, *quiet]), "fcfs", fleet, planner=name)) for name in ("qlm", "plan")
    )
    assert plan.tenants["quiet"].in_time == 1.0
    assert qlm.tenants["quiet"].in_time < 0.8


def test_plan_gives_a_tenant_of_more_weight_more_of_a_model() -> None:
    rows = [(0.0, tenant, "a", "normal", 20) for tenant in ("heavy", "light") for _ in range(60)]
    weights = {"heavy": 3.0, "light": 1.0}
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1, "a"), planner="plan", weights=weights))
    heavy, light = (run.tenants[name].ttft_s for name in ("heavy", "light"))
    assert heavy is not None
    assert light is not None
    assert heavy.p99 < 0.8 * light.p99


def test_round_robin_sends_to_every_worker_in_turn_whatever_waits_there() -> None:
    rows = [(0.0, "x", "a", "normal", 100 if n % 2 else 1) for n in range(16)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(2), planner="round-robin"))
    assert run.total_time_s == pytest.approx(2.0 + 2 * 10.0, abs=0.3)  # eight long ones on one worker of four slots


def test_static_keeps_the_models_that_equal_workers_have() -> None:
    fleet = fleet_of(2)
    loaded = replace(fleet, workers=[replace(w, loaded=m) for w, m in zip(fleet.workers, "ba", strict=True)])
    rows = [(0.0, "x", model, "normal", 5) for model in "aab"]
    assert simulate(RunSpec(requests_of(rows), "fcfs", loaded, planner="static")).swaps == 0


def test_edf_serves_the_first_due_before_the_first_come() -> None:
    rows = [(0.0, "x", "a", "batch", 30)] * 8 + [(0.1, "y", "a", "interactive", 1)]
    late, early = (
        simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(1), planner=planner)).tenants["y"].ttft_s
        for planner in ("fcfs", "edf")
    )
    assert late is not None
    assert early is not None
    assert early.p50 < late.p50


def test_a_worker_loads_only_its_own_models() -> None:
    fleet = fleet_of(2)
    one, two = fleet.workers
    apart = replace(fleet, workers=[WorkerSpec(w.name, w.kind, {m: w.models[m]}) for w, m in ((one, "a"), (two, "b"))])
    rows = [(0.0, "x", model, "normal", 10) for model in "abab"]
    for planner in PLANNERS:
        assert simulate(RunSpec(requests_of(rows), "fcfs", apart, planner=planner)).swaps == 2


@pytest.mark.parametrize(
    ("model", "slo_class", "says"),
    [("other", "normal", "the model 'other'"), ("a", "soon", "the SLO class 'soon'")],
)
def test_a_workload_that_does_not_fit_the_fleet(model: str, slo_class: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_fleet_run(RunSpec(requests_of([(0.0, "x", model, slo_class, 1)]), "fcfs", fleet_of(1), planner="plan"))


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_swaps_of_no_time(planner: str) -> None:
    rows = [(0.2 * n, "xy"[n % 2], "ab"[n % 2], "interactive", 5) for n in range(60)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(2, swap_s=0.0), planner=planner))
    assert (run.all.served, run.swapping_s) == (60, 0.0)


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_requests_without_tokens_are_served(planner: str) -> None:
    """Logs have them, of calls that failed. shepherd divided by the time of such a batch."""
    arrivals = [Arrival(0.1 * n, "x", 0, 0, model="ab"[n % 2]) for n in range(8)]
    run = simulate(RunSpec(ListWorkload("made", arrivals), "fcfs", fleet_of(2), planner=planner))
    assert run.all.served == 8


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_tenants_that_are_all_over_their_share_are_served(planner: str) -> None:
    rows = [(0.01 * n, "xyz"[n % 3], "ab"[n % 2], "interactive", 60) for n in range(300)]
    run = simulate(RunSpec(requests_of(rows), "fcfs", fleet_of(2), planner=planner))
    assert run.all.served == 300
    assert run.all.in_time < 0.5


def test_errors_of_a_fleet_made_in_code() -> None:
    fleet = fleet_of(1)
    for seconds in (inf, nan, -1.0):
        with pytest.raises(ValueError, match="swap_s must be finite and not negative"):
            Loadable(load_profile("a10g-llama2-7b"), seconds, 1)
        with pytest.raises(ValueError, match="actual_swap_s must be finite"):
            Loadable(load_profile("a10g-llama2-7b"), 1.0, 1, seconds)
    with pytest.raises(ValueError, match="slots must be at least 1"):
        Loadable(load_profile("a10g-llama2-7b"), 1.0, 0)
    with pytest.raises(ValueError, match="actual_drain_s must be at least 1"):
        replace(fleet, actual_drain_s=0.0)
    with pytest.raises(ValueError, match="no worker"):
        FleetSpec([])
    with pytest.raises(ValueError, match="two workers have the name 'w0'"):
        FleetSpec([*fleet.workers, *fleet.workers])
    with pytest.raises(ValueError, match="unknown SLO class 'soon'"):
        replace(fleet, default_class="soon")
    with pytest.raises(ConfigurationError, match="unknown planner 'best'"):
        check_fleet_run(RunSpec(requests_of([]), "fcfs", fleet, planner="best"))
