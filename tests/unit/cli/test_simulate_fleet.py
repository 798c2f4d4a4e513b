"""`headgate simulate --fleet`: its table, its JSON with the same bytes every time, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.command import headgate

EXAMPLES = Path(__file__).parents[3] / "examples"
WORKLOAD, FLEET = str(EXAMPLES / "workloads" / "models.yaml"), str(EXAMPLES / "simulated-fleet.yaml")


def test_json_has_every_planner_and_the_same_bytes_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", WORKLOAD, "--fleet", FLEET, "--planner", "fcfs,edf,static", "--json")
    assert headgate(*arguments) == 0
    first = capsys.readouterr().out
    assert headgate(*arguments, "--processes", "1") == 0
    assert capsys.readouterr().out == first
    runs = json.loads(first)["runs"]
    assert [run["planner"] for run in runs] == ["fcfs", "edf", "static"]
    assert runs[1]["all"]["in_time"] > runs[0]["all"]["in_time"]
    for run in runs:
        assert list(run["classes"]) == ["batch", "interactive", "normal"]
        assert list(run["tenants"]) == ["chat", "code", "night"]
        assert run["all"]["requests"] == sum(tenant["requests"] for tenant in run["tenants"].values())


def test_the_table_names_planners_classes_and_tenants(capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("simulate", WORKLOAD, "--fleet", FLEET, "--planner", "edf,static", "--policy", "fcfs,vtc") == 0
    out = capsys.readouterr().out
    for text in ("edf fcfs", "static vtc", "in time", "s swapping", "interactive", "night"):
        assert text in out


def test_a_trace_without_models_or_classes_takes_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "some.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,10,10\n1,b,10,10\n")
    assert headgate("simulate", str(trace), "--fleet", FLEET, "--planner", "fcfs", "--json") == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert list(run["classes"]) == ["normal"]
    assert run["swaps"] == 0  # the fleet's first model is loaded on its first worker


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--fleet", FLEET), "--fleet and --planner belong together"),
        (("--planner", "fcfs"), "--fleet and --planner belong together"),
        (("--fleet", FLEET, "--planner", "best"), "unknown planner 'best'; there are"),
        (("--fleet", FLEET, "--planner", ","), "--planner: name at least one"),
        (("--fleet", FLEET, "--planner", "fcfs", "--engine", "a100-llama2-13b"), "--engine does not apply"),
        (("--fleet", FLEET, "--planner", "fcfs", "--lead-max", "5"), "--lead-max does not apply with --fleet"),
        (("--fleet", "none.yaml", "--planner", "fcfs"), "none.yaml"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("simulate", WORKLOAD, *arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err


def test_a_workload_with_an_unknown_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text(Path(WORKLOAD).read_text().replace("law-8b", "law-9b"))
    assert headgate("simulate", str(workload), "--fleet", FLEET, "--planner", "fcfs") == 2
    assert "requests the model 'law-9b', which no worker of the fleet can load" in capsys.readouterr().err
