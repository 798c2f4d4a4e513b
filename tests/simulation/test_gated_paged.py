"""The gate before the paged engine: slots beside the batch, tiers from the gate's file, requests that end early."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.shedding import ShedSettings
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.gates.spec import GateSpec, GateTenant
from headgate.simulator.measures.collector import Scheduling, TierCollector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload
from tests.unit.cli.command import headgate

BATCH = 8
MANY = 12 * BATCH
"""Slots enough for every request that waits."""
PROFILE = load_profile("a100x8-llama3-70b").model_copy(update={"batch_max": BATCH})
TIERS = {"premium": Tier.PREMIUM, "standard": Tier.STANDARD, "background": Tier.BACKGROUND}
ARRIVALS = [Arrival(n * 0.2, list(TIERS)[n % 3], 150, 100) for n in range(300)]
MIXED = ListWorkload("mixed", ARRIVALS)
TENANTS = {name: GateTenant(Share(), tier) for name, tier in TIERS.items()}
SPEC = RunSpec(MIXED, "tiered:vtc", PROFILE, tiers=TierSettings())


def gate(slots: int) -> GateSpec:
    return GateSpec(slots, "bwfq", TENANTS, deadline_s=3600.0)


def scheduling(run: Run) -> Scheduling:
    assert run.scheduling is not None
    return run.scheduling


def premium_p99_s(run: Run) -> float:
    seconds = scheduling(run).tiers["premium"].ttft_s
    assert seconds is not None
    return seconds.p99


def evictions(run: Run) -> int:
    return sum(sum(tier.preemptions.values()) for tier in scheduling(run).tiers.values())


def test_with_more_slots_than_batch_places_requests_are_preempted_behind_the_gate() -> None:
    run = simulate(replace(SPEC, gate=gate(MANY)))
    without = simulate(replace(SPEC, gate=gate(MANY), tiers=TierSettings(preemption=False)))
    assert run.served == without.served == len(ARRIVALS)
    assert evictions(run) > 0 == evictions(without)
    assert premium_p99_s(run) < premium_p99_s(without) / 2


def test_with_fewer_slots_than_batch_places_the_engine_has_nothing_to_preempt() -> None:
    run = simulate(replace(SPEC, gate=gate(BATCH)))
    assert run.served == len(ARRIVALS)
    assert evictions(run) == 0
    assert premium_p99_s(run) > 2 * premium_p99_s(simulate(replace(SPEC, gate=gate(MANY))))


def test_a_request_takes_its_own_tier_then_the_gates_then_the_workloads() -> None:
    class Seen(TierCollector):
        def on_served(self, request: SimRequest) -> None:
            seen[request.tenant, request.arrival.arrival_s] = request.tier

    arrivals = [Arrival(0.0, "a", 10, 10), Arrival(1.0, "a", 10, 10, tier="premium"), Arrival(0.0, "b", 10, 10)]
    workload = ListWorkload("three", arrivals, tiers={"a": "standard", "b": "background"})
    tenants = {"a": GateTenant(tier=Tier.BACKGROUND), "b": GateTenant()}
    seen: dict[tuple[str, float], Tier] = {}
    spec = replace(SPEC, workload=workload, gate=GateSpec(4, "bwfq", tenants))
    simulate(spec, Seen(lambda given, made: 1.0, 0.0))
    assert seen == {("a", 0.0): Tier.BACKGROUND, ("a", 1.0): Tier.PREMIUM, ("b", 0.0): Tier.BACKGROUND}


def test_a_request_that_the_engine_ends_early_gives_its_slot_back() -> None:
    tiers = TierSettings(preemptions_max=0, at_limit="end")
    run = simulate(replace(SPEC, gate=gate(3 * BATCH), tiers=tiers))
    assert run.rejections.keys() == {"exhausted"}
    assert run.rejected > 3 * BATCH
    assert run.served + run.rejected == len(ARRIVALS)


def test_a_request_that_the_worker_sheds_gives_its_slot_back() -> None:
    run = simulate(replace(SPEC, gate=gate(4 * BATCH), shedding=ShedSettings()))
    assert run.rejections.keys() == {"shed"}
    assert run.rejected > 4 * BATCH
    assert run.served + run.rejected == len(ARRIVALS)


def test_an_early_end_is_charged_for_what_was_generated() -> None:
    request = SimRequest("r", Arrival(0.0, "a", 10, 100), 0.0)
    assert request.charged_tokens == (10, 100)
    request.rejected = "dropped"
    assert request.charged_tokens == (0, 0)
    request.generated_tokens = 7
    assert request.charged_tokens == (10, 7)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{a.arrival_s},{a.tenant},{a.input_tokens},{a.output_tokens}" for a in ARRIVALS]
    trace, tenants = tmp_path / "mixed.csv", tmp_path / "gate.yaml"
    trace.write_text("\n".join(["arrival_s,tenant,input_tokens,output_tokens", *rows]) + "\n")
    tenants.write_text("slots: 32\n" + "".join(f"{name}: {{tier: {name}}}\n" for name in TIERS))
    assert headgate(
        *("simulate", str(trace), "--engine", "a100x8-llama3-70b", "--policy", "tiered:vtc,fcfs"),
        *("--gate", "on", "--tenants", str(tenants), "--preemption", "on", "--json"),
    ) == 0  # fmt: skip
    for run in json.loads(capsys.readouterr().out)["runs"]:
        assert run["served"] == len(ARRIVALS)
        assert run["gate"] == {"order": "bwfq", "slots": 32}
        assert list(run["scheduling"]["tiers"]) == list(TIERS)
