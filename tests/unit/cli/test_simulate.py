"""`headgate simulate`, also with `--fleet`: what it prints, the same bytes every time, one line for what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.hang_guard import HANG_S
from tests.support.simulator.jobs import heeds_interrupts
from tests.unit.cli.command import headgate

ROOT = Path(__file__).parents[3]
ROWS = [f"{n * 0.5},{'flood' if n % 4 else 'quiet'},100,40" for n in range(240)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "some.csv"
    path.write_text("\n".join(["arrival_s,tenant,input_tokens,output_tokens", *ROWS]) + "\n")
    return path


def runs_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert headgate("simulate", *arguments, "--json") == 0
    runs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return runs


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert headgate("simulate", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_one_object_a_policy_with_the_promised_keys(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = runs_of(capsys, str(trace), "--policy", "fcfs,vtc,rpm:5")
    assert [run["policy"] for run in runs] == ["fcfs", "vtc", "rpm:5"]
    for run in runs:
        assert list(run) == [
            *("workload", "policy", "seed", "requests", "served", "rejected", "rejections", "total_time_s"),
            *("throughput_tokens_per_s", "service_difference", "tenants", "decisions", "bounds", "waits"),
        ]
        assert run["workload"] == "some"
        assert run["served"] + run["rejected"] == run["requests"] == 240
        assert list(run["service_difference"]) == ["max", "avg", "var"]
        assert list(run["tenants"]) == ["flood", "quiet"]
        kept = ["requests", "served", "rejected", "service", "ttft_s", "latency_s"]
        assert list(run["tenants"]["quiet"]) == kept
    assert runs[1]["bounds"].keys() == {"4.3", "4.4", "4.9", "4.11", "4.13"}
    assert runs[2]["rejections"] == {"rate": runs[2]["rejected"]}


def test_the_same_arguments_give_the_same_bytes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for processes in ("1", "2"):
        arguments = ("--policy", "vtc,vtc-noisy:0.5", "--seeds", "3", "--jitter", "0.05", "--processes", processes)
        assert headgate("simulate", str(trace), *arguments, "--json") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert {"mean", "sd"} == json.loads(printed[0])["runs"][0]["spread"]["total_time_s"].keys()


def test_timing_only_where_it_was_asked_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "timing" not in runs_of(capsys, str(trace))[0]
    timing = runs_of(capsys, str(trace), "--timing")[0]["timing"]
    assert timing.keys() == {"wall_s", "decision_us_mean", "decision_us_p99"}
    assert min(timing.values()) > 0


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "simulator.md").read_text()
    command, *shown = page.split("```\n$ headgate simulate ")[1].split("```")[0].splitlines()
    assert headgate("simulate", *command.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in printed if line] == [line for line in shown if line]


def test_tables_for_people(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("simulate", str(trace), "--policy", "fcfs,vtc", "--seeds", "2", "--jitter", "0.05") == 0
    printed = capsys.readouterr().out
    assert "some: 240 requests of 2 tenants; mean ± standard deviation over 2 seeds" in printed
    assert all(word in printed for word in ("fcfs", "vtc", "flood", "quiet", "±"))


def test_weights_and_service_and_horizon(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = runs_of(capsys, str(trace))[0]
    assert runs_of(capsys, str(trace), "--weights", "flood=10,quiet=1")[0] != plain
    tokens = runs_of(capsys, str(trace), "--service", "tokens")[0]
    assert tokens["tenants"]["quiet"]["service"] == 60 * 140
    assert runs_of(capsys, str(trace), "--horizon", "60")[0]["service_difference"]["avg"] is None


def test_weights_of_wsc_are_part_of_its_name(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = runs_of(capsys, str(trace), "--policy", "fcfs,wsc", "--wsc-weights", "1,1,2")
    assert [run["policy"] for run in runs] == ["fcfs", "wsc:1,1,2"]
    assert runs_of(capsys, str(trace), "--policy", "wsc:1,1,2,fcfs")[0] == runs[1]


def test_azures_files_are_a_tenant_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("chat", "code"):
        rows = [f"2023-11-16 18:15:{second:02}.0000000,100,20" for second in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    run = runs_of(capsys, *(f"{name}={tmp_path / name}.csv" for name in ("chat", "code")))[0]
    assert {name: tenant["served"] for name, tenant in run["tenants"].items()} == {"chat": 30, "code": 30}


def test_every_example_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted((ROOT / "examples" / "workloads").glob("*.yaml")):
        assert runs_of(capsys, str(path), "--policy", "vtc")[0]["served"] > 0


def test_the_gate_before_the_engine(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tenants = str(ROOT / "examples" / "tenants.yaml")
    for order in ("bwfq", "fcfs", "sfq", "virtual-clock"):
        run = runs_of(capsys, str(trace), "--gate", "on", "--tenants", tenants, "--order", order)[0]
        assert run["gate"] == {"order": order, "slots": 24}
        assert run["served"] == 240
    both = runs_of(capsys, str(trace), "--gate", "on", "--tenants", tenants, "--order", "fcfs, bwfq")
    assert [run["gate"]["order"] for run in both] == ["fcfs", "bwfq"]
    assert headgate("simulate", str(trace), "--gate", "on", "--tenants", tenants, "--order", "fcfs,bwfq") == 0
    printed = capsys.readouterr().out
    assert "fcfs, then vtc" in printed
    assert "bwfq, then vtc" in printed


def test_a_report_is_written(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("simulate", str(trace), "--policy", "fcfs,vtc", "--report", str(tmp_path / "page.html")) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_report_never_takes_the_place_of_the_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trace.read_bytes()
    assert "name an .html file" in refused(capsys, str(trace), "--report", str(trace))
    assert trace.read_bytes() == before


def test_times_out_of_order_are_sorted_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "back.csv"
    path.write_text("arrival_s,tenant,input_tokens,output_tokens\n5,a,20,5\n1,a,20,5\n")
    assert headgate("simulate", str(path), "--json") == 0
    assert "order" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("--policy", "bogus"), "there are"),
        (("--policy", "rpm"), "rpm"),
        (("--policy", ""), "name at least one"),
        (("--engine", "steam"), "a10g-llama2-7b"),
        (("--service", "bogus"), "bogus"),
        (("--weights", "unknown=1"), "unknown"),
        (("--weights", "flood=-1"), "positive"),
        (("--weights", "flood"), "TENANT=NUMBER"),
        (("--weights", "flood=1,flood=2"), "'flood' has two weights: give one"),
        (("--live",), "--live needs --fleet and --planner"),
        (("--wsc-weights", "1,1,2"), "--policy wsc"),
        (("--policy", "wsc", "--wsc-weights", "1,1"), "three numbers"),
        (("--jitter", "-1"), "--jitter"),
        (("--horizon", "0"), "--horizon"),
        (("--seeds", "0"), "--seeds"),
        (("--order", "sfq"), "--gate on"),
        (("--gate", "on"), "--tenants"),
        (("--gate", "ajar"), "on or off"),
        (("--gate", "on", "--tenants", "nowhere.yaml"), "nowhere.yaml"),
        (("--report", "/nowhere/page.html"), "/nowhere"),
        (("--report", "page.csv"), "--report: name an .html file, not 'page.csv'"),
        (("--preemption", "perhaps"), "--preemption must be on or off"),
        (("--locality",), "--locality needs --prefix-cache"),
        (("--loaded-first",), "--loaded-first needs --max-loras"),
        (("--adapter-load-tokens", "0"), "--adapter-load-tokens needs --max-loras"),
        (("--max-loras", "2", "--adapter-lead", "1"), "--adapter-lead needs --policy tiered:POLICY"),
        (("--max-loras", "2", "--policy", "tiered:vtc", "--adapter-lead", "-1"), "--adapter-lead: "),
        (("--premium-reserve", "0.3"), "add --preemption"),
        (("--preemption", "off", "--lead-max", "500"), "--lead-max needs --preemption on"),
        (("--preemption", "on", "--premium-reserve", "1"), "premium_reserve must be"),
        (("--preemption", "on", "--lead-max", "0"), "lead_max must be"),
    ],
)
def test_bad_input_is_one_line(
    trace: Path, arguments: tuple[str, ...], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed in refused(capsys, str(trace), *arguments)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "is empty: its first line must name the columns"),
        ("arrival_s,tenant,input_tokens,output_tokens\n", "no request"),
        ("arrival_s,tenant,input_tokens,output_tokens\n0,a,x,5\n", "line 2"),
        ("tenants: {a: {arrivals: {kind: bogus}}}", "key 'duration_s'"),
    ],
)
def test_a_workload_that_is_wrong(tmp_path: Path, text: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("wrong.yaml" if "kind" in text else "wrong.csv")
    path.write_text(text)
    assert printed in refused(capsys, str(path))


def test_interrupted_it_leaves_no_process_behind(trace: Path) -> None:
    command = [sys.executable, "-m", "headgate.cli", "simulate", str(trace), "--policy", "vtc", "--seeds", "10000"]
    started = subprocess.Popen(
        [*command, "--jitter", "0.05", "--processes", "2"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=heeds_interrupts,
    )
    whole = psutil.Process(started.pid)
    while len(children := whole.children()) < 2:
        assert started.poll() is None, started.stderr.read() if started.stderr else ""
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, printed = started.communicate(timeout=HANG_S)
    assert started.returncode == 130
    assert "Traceback" not in printed
    assert psutil.wait_procs(children, timeout=HANG_S)[1] == []


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


def test_first_tokens_in_time_are_counted_where_the_workload_says_when_they_are_due(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = tmp_path / "due.csv", tmp_path / "page.html"
    rows = ("0,a,300,20,500", "0,b,3000,200,", "0.1,a,300,20,50")
    trace.write_text("\n".join(["arrival_s,tenant,input_tokens,output_tokens,slo_ttft_ms", *rows]) + "\n")
    assert headgate("simulate", str(trace), "--json") == 0
    tenants = json.loads(capsys.readouterr().out)["runs"][0]["tenants"]
    assert tenants["a"]["in_time"] == 0.5
    assert "in_time" not in tenants["b"]
    assert headgate("simulate", str(trace), "--report", str(page)) == 0
    assert "in time" in capsys.readouterr().out
    shown = page.read_text()
    assert "first token in time" in shown
    assert ",0.5\n" in shown.partition("The data as CSV")[2]
    without = tmp_path / "without.csv"
    without.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,300,20\n")
    assert headgate("simulate", str(without), "--report", str(page)) == 0
    assert "in time" not in capsys.readouterr().out
    assert "first token in time" not in page.read_text()
