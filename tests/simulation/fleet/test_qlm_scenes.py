"""The scenes of QLM's chapter: the same arrivals every time, and the bands of the issue on the smallest of them."""

from __future__ import annotations

from headgate.evidence.qlm.scenes import (
    MEGA_TOKENS,
    five_models,
    five_models_fleet,
    flood,
    mixed_fleet,
    w_a,
    w_b,
    w_b_fleet,
)
from headgate.simulator.fleet.run import check_fleet_run
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate


def test_w_b_is_as_the_paper_describes_it() -> None:
    workload = w_b(40.0)
    assert list(workload) == list(w_b(40.0))
    assert list(workload) != list(w_b(40.0, seed=2))
    assert workload.requests == 3500
    classes = {str(arrival.model): str(arrival.slo_class) for arrival in workload}
    assert sorted(classes.values()) == ["batch", "batch", "batch", "normal", "normal"]
    check_fleet_run(RunSpec(workload, "fcfs", w_b_fleet(), planner="plan"))


def test_w_b_is_in_time_under_plan_with_more_throughput_than_the_global_queue() -> None:
    plan, fcfs = (simulate(RunSpec(w_b(100.0), "fcfs", w_b_fleet(), planner=name)) for name in ("plan", "fcfs"))
    assert plan.all.in_time >= 0.98
    assert plan.requests_per_s >= 1.5 * fcfs.requests_per_s


def test_five_models_on_two_workers() -> None:
    run = simulate(RunSpec(five_models(0.4), "fcfs", five_models_fleet(3.0), planner="plan"))
    assert run.all.in_time >= 0.9


def test_the_flood_is_above_the_capacity_and_the_steady_tenant_below_its_share() -> None:
    sent = [arrival.tenant for arrival in flood("normal")]
    assert sent.count("flood") > 10 * sent.count("steady") > 1000


def test_mega_prompts_and_mixed_fleets() -> None:
    lengths = [each.input_tokens + each.output_tokens for each in w_a(10.0, requests=400, mega=1.0)]
    assert all(MEGA_TOKENS[0] - 2 <= length <= MEGA_TOKENS[1] for length in lengths)
    assert [worker.kind for worker in mixed_fleet(2, 1).workers] == ["a10", "a10", "a100"]
    assert {worker.kind for worker in mixed_fleet(0, 2).workers} == {"a100"}
