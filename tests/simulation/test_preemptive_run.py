"""A run of the paged engine as a value and on the command line: by tier, with shedding, the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.shedding import ShedSettings
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.interface import output_tokens_max
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.collector import Scheduling
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, as_json
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload
from tests.unit.cli.command import headgate

PROFILE = load_profile("a100x8-llama3-70b").model_copy(update={"batch_max": 8})
TIERS = ("premium", "standard", "background")
ARRIVALS = [Arrival(n * 0.2, TIERS[n % 3], 150, 100) for n in range(600)]
MIXED = ListWorkload("mixed", ARRIVALS, tiers={name: name for name in TIERS})
SPEC = RunSpec(MIXED, "tiered:vtc", PROFILE, tiers=TierSettings())


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [f"{a.arrival_s},{a.tenant},{a.input_tokens},{a.output_tokens},{a.tenant}" for a in ARRIVALS]
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join(["arrival_s,tenant,input_tokens,output_tokens,tier", *rows]) + "\n")
    return path


def scheduling(run: Run) -> Scheduling:
    assert run.scheduling is not None
    return run.scheduling


def test_the_measures_of_the_tiers_add_up() -> None:
    run = simulate(SPEC)
    measured = scheduling(run)
    assert list(measured.tiers) == list(TIERS)
    assert [tier.requests for tier in measured.tiers.values()] == [200, 200, 200]
    assert sum(tier.throughput_tokens_per_s for tier in measured.tiers.values()) == pytest.approx(
        run.throughput_tokens_per_s
    )
    planned = sum(sum(tier.preemptions.values()) for tier in measured.tiers.values())
    a_minute = sum(rate for name, rate in measured.preemptions_per_min.items() if name != "native")
    assert planned > 0
    assert a_minute * run.total_time_s / 60 == pytest.approx(planned)
    assert measured.tiers["premium"].preemptions == {"swap": 0, "recompute": 0, "drop": 0}
    assert measured.tiers["background"].attainment is None


def test_premium_comes_sooner_with_tiers_and_still_sooner_with_preemption() -> None:
    p99_s = []
    for policy, tiers in (
        ("fcfs", TierSettings(preemption=False)),
        ("tiered:vtc", TierSettings(preemption=False)),
        ("tiered:vtc", TierSettings()),
    ):
        values = scheduling(simulate(replace(SPEC, policy=policy, tiers=tiers))).tiers["premium"].ttft_s
        assert values is not None
        p99_s.append(values.p99)
    assert p99_s[0] > 5 * p99_s[1] > 5 * p99_s[2]


def test_shedding_refuses_background_first_and_never_premium() -> None:
    run = simulate(replace(SPEC, shedding=ShedSettings()))
    tiers = scheduling(run).tiers
    assert run.rejections.keys() == {"shed"}
    assert tiers["background"].rejected > tiers["standard"].rejected
    assert tiers["premium"].rejected == 0


def test_a_run_without_tiers_tells_of_none() -> None:
    run = simulate(replace(SPEC, policy="vtc", tiers=None))
    assert run.scheduling is None
    assert "scheduling" not in as_json(run)


def test_the_same_arguments_give_the_same_bytes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for processes in ("1", "2"):
        assert headgate(
            *("simulate", str(trace), "--engine", "a100x8-llama3-70b", "--policy", "tiered:vtc,fcfs"),
            *("--preemption", "on", "--seeds", "2", "--jitter", "0.05", "--processes", processes, "--json"),
        ) == 0  # fmt: skip
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    runs = json.loads(outputs[0])["runs"]
    assert list(runs[0]["scheduling"]["tiers"]) == list(TIERS)
    assert runs[0]["scheduling"]["preemptions_per_min"].keys() == {"swap", "recompute", "drop", "native"}


def test_the_table_has_a_line_a_tier(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("simulate", str(trace), "--policy", "tiered:vtc", "--preemption", "on") == 0
    table = capsys.readouterr().out
    lines = [line.strip() for line in table.splitlines() if "%" in line and " ms" in line]
    assert [line.split()[0] for line in lines] == list(TIERS[:2])
    assert "preemptions a minute" in table


@pytest.mark.parametrize(("true", "asked"), [(0, 16), (16, 16), (17, 32), (256, 256), (257, 512)])
def test_what_a_client_asks_for_at_most(true: int, asked: int) -> None:
    assert output_tokens_max(true) == asked


def test_the_policy_sees_what_a_client_asks_for_and_its_tier() -> None:
    engine = PagedEngine(load_profile(), make_policy("tiered:vtc"))
    assert engine.submit(SimRequest("a", Arrival(0.0, "t", 10, 17, tier="premium"), 0.0), 0.0)
    assert engine.submit(SimRequest("b", Arrival(0.0, "t", 10, 17), 0.0), 0.0)
    seen = [engine.policy.record(name).request for name in "ab"]
    assert [(one.output_tokens_max, one.tier) for one in seen] == [(32, Tier.PREMIUM), (32, Tier.STANDARD)]
