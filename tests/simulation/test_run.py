"""A run as a value: what it counts, what its JSON says, and the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headgate.simulator.engines.profile import load_profile
from headgate.simulator.run import RunSpec, as_json, spread_of
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

FLOOD = [Arrival(n / 4, "flood", 200, 100) for n in range(480)]
QUIET = [Arrival(n * 3.0, "quiet", 100, 50) for n in range(40)]
WORKLOAD = ListWorkload("flood", sorted([*FLOOD, *QUIET], key=lambda arrival: arrival.arrival_s))
SPEC = RunSpec(WORKLOAD, "vtc", load_profile())


def json_of(spec: RunSpec) -> str:
    return json.dumps(as_json(simulate(spec)), allow_nan=False)


def test_what_is_counted_adds_up() -> None:
    run = simulate(SPEC)
    assert (run.requests, run.served, run.rejected, run.decisions) == (520, 520, 0, 520)
    assert run.tenants["quiet"].service == 40 * (100 + 2 * 50)
    tokens = 480 * 300 + 40 * 150
    assert run.throughput_tokens_per_s * run.total_time_s == pytest.approx(tokens)


def test_the_same_arguments_give_the_same_bytes() -> None:
    jittered = replace(SPEC, jitter=0.05, seed=7)
    assert json_of(jittered) == json_of(jittered)
    assert json_of(jittered) != json_of(replace(jittered, seed=8))
    assert json.loads(json_of(SPEC))["total_time_s"] == json.loads(json_of(replace(SPEC, seed=8)))["total_time_s"]


def test_a_workload_shorter_than_ninety_seconds_has_no_service_difference() -> None:
    short = replace(SPEC, horizon_s=89.9)
    assert as_json(simulate(short))["service_difference"] == {"max": None, "avg": None, "var": None}
    assert as_json(simulate(replace(SPEC, horizon_s=90.0)))["service_difference"]["avg"] is not None


def test_an_empty_workload_is_a_run_of_nothing() -> None:
    run = simulate(replace(SPEC, workload=ListWorkload("nothing", [])))
    assert (run.requests, run.total_time_s, run.throughput_tokens_per_s, run.tenants) == (0, 0.0, 0.0, {})


def test_what_is_larger_than_the_pool_is_rejected_and_counted() -> None:
    large = ListWorkload("large", [Arrival(0.0, "a", 9_999, 1), Arrival(0.0, "a", 10, 10)])
    run = simulate(replace(SPEC, workload=large))
    assert (run.served, run.rejected, run.rejections) == (1, 1, {"too_large": 1})


def test_weights_of_the_command_line_come_before_the_workloads() -> None:
    flooded = ListWorkload(
        "two", [Arrival(0.0, name, 100, 100) for _ in range(300) for name in "ab"], weights={"a": 1.0, "b": 1.0}
    )
    spec = replace(SPEC, workload=flooded, timeline=True)
    halfway = [simulate(replace(spec, weights=weights)) for weights in ({}, {"a": 3.0})]
    equal, favoured = (
        sum(run.timeline.service_rate["a"][:20]) / sum(sum(run.timeline.service_rate[name][:20]) for name in "ab")
        for run in halfway
        if run.timeline is not None
    )
    assert equal == pytest.approx(0.5, abs=0.05)
    assert favoured == pytest.approx(0.75, abs=0.05)


def test_the_spread_is_that_of_the_seeds() -> None:
    runs = [simulate(replace(SPEC, jitter=0.05, seed=seed)) for seed in range(3)]
    spread = spread_of(runs)
    times = [run.total_time_s for run in runs]
    assert spread["total_time_s"]["mean"] == pytest.approx(sum(times) / 3)
    assert spread["total_time_s"]["sd"] > 0
    assert spread["served"] == {"mean": 520.0, "sd": 0.0}
    assert "service_difference.avg" in spread
