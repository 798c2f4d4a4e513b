"""`headgate simulate --fit`: a profile that --engine takes, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import yaml

from headgate.simulator.engines.profile import engine_names, load_profile
from tests.unit.cli.command import headgate

HEADER = "arrival_s,ttft_s,latency_s,input_tokens,output_tokens"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of an idle server: prefill 50 ms + 0.1 ms a token, decode 20 ms."""
    random, rows = Random(1), []
    for number in range(40):
        prompt, output = random.randint(20, 400), random.randint(10, 100)
        first_s = 0.05 + 0.0001 * prompt
        rows.append(f"{10 * number},{first_s:.6f},{first_s + 0.02 * (output - 1):.6f},{prompt},{output}")
    path = tmp_path / "server.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_the_profile_is_one_that_the_simulator_takes(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "mine.yaml"
    assert headgate("simulate", "--fit", str(log), "--profile", str(written)) == 0
    printed = capsys.readouterr().out
    for text in ("server.csv: 40 requests", "decode step = 20.000 ms", "prefill = 50.000 ms + 0.10000 ms", "error P50"):
        assert text in printed
    profile = load_profile(str(written))
    assert profile.name == "mine"
    assert profile.decode_base_s == pytest.approx(0.02, abs=1e-6)
    assert profile.fitted_on is not None
    assert (profile.fitted_on.log, profile.fitted_on.requests, profile.fitted_on.batch_max) == ("server.csv", 40, 1)
    assert profile.fitted_on.whole_answer_errors_s["p99"] < 0.001
    trace = tmp_path / "some.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,100,50\n")
    assert headgate("simulate", str(trace), "--engine", str(written), "--json") == 0
    assert "outside" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("is_disaggregated", [False, True])
def test_a_server_of_another_kind_gets_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_disaggregated: bool
) -> None:
    """Prompts that another machine computes slow no decode. So no step tells how long a prompt takes."""
    random, rows = Random(2), []
    for number in range(60):
        prompt, output = random.randint(100, 900), random.randint(50, 150)
        arrival_s = 0.5 * number if is_disaggregated else 10.0 * number
        first_s = 0.02 + 0.0003 * prompt
        rows.append(f"{arrival_s},{first_s:.6f},{first_s + 0.025 * (output - 1):.6f},{prompt},{output}")
    log = tmp_path / "server.csv"
    log.write_text("\n".join([HEADER, *rows]) + "\n")
    assert headgate("simulate", "--fit", str(log)) == 0
    assert ("first tokens are far from the log's" in capsys.readouterr().err) is is_disaggregated


@pytest.mark.parametrize(("factor", "is_noted"), [(1, False), (1000, True), (0.001, True)])
def test_times_in_another_unit_get_a_note(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, factor: float, is_noted: bool
) -> None:
    header, *rows = (row.split(",") for row in log.read_text().splitlines())
    other = [[arrival, *(str(float(time) * factor) for time in times), *tokens]
             for arrival, *times, tokens in ((row[0], row[1], row[2], row[3:]) for row in rows)]  # fmt: skip
    path = tmp_path / "other.csv"
    path.write_text("\n".join(",".join(row) for row in (header, *other)) + "\n")
    assert headgate("simulate", "--fit", str(path)) == 0
    assert ("check the units of the log's times" in capsys.readouterr().err) is is_noted


def test_a_run_outside_of_what_was_fitted_warns(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, trace = tmp_path / "mine.yaml", tmp_path / "some.csv"
    assert headgate("simulate", "--fit", str(log), "--profile", str(written)) == 0
    facts = yaml.safe_load(written.read_text())
    written.write_text(yaml.safe_dump({**facts, "batch_max": 8, "pool_tokens": 8000}))
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,100,50\n0,a,100,50\n0,a,100,50\n0,a,900,50\n")
    capsys.readouterr()
    assert headgate("simulate", str(trace), "--engine", str(written), "--policy", "fcfs,vtc", "--json") == 0
    printed = capsys.readouterr()
    assert "note: 4 requests ran at once, and the profile was fitted to at most 1 (server.csv)" in printed.err
    assert "note: 1 of 4 prompts are outside " in printed.err
    assert printed.err.count("note:") == 2  # once, and not for each policy
    assert [len(run["outside_fit"]) for run in json.loads(printed.out)["runs"]] == [2, 2]


@pytest.mark.parametrize("engine", [each for each in engine_names() if load_profile(each).fitted])
def test_a_run_outside_of_what_a_profile_of_ours_was_fitted_to_warns(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default profile said that it was fitted, and not to what."""
    fitted_on = load_profile(engine).fitted_on
    assert fitted_on is not None
    trace = tmp_path / "trace.csv"
    most = fitted_on.input_tokens_max
    for longest, expected in (
        (most, ""),
        (most + 1, f"note: 1 of 2 prompts are outside {fitted_on.input_tokens_min} "),
    ):
        trace.write_text(f"arrival_s,tenant,input_tokens,output_tokens\n0,a,{longest},9\n1,a,{most},9\n")
        assert headgate("simulate", str(trace), "--engine", engine, "--processes", "1") == 0
        printed = capsys.readouterr().err
        assert printed.startswith(expected)
        assert bool(printed) is bool(expected)


def test_the_rules_of_a_named_engine_are_kept(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("simulate", "--fit", str(log), "--engine", "a10g-llama2-7b", "--policy", "vtc", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"]["pool_tokens"] == 10000
    assert found["profile"]["steps_between_admissions"] == 10
    assert found["profile"]["fitted_on"]["admission"] == "the rules of the profile a10g-llama2-7b"
    assert found["profile"]["fitted_on"]["policy"] == "vtc"
    assert found["refused"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--fit", "{log}", "{log}"), "a workload does not apply with --fit"),
        (("--fit", "{log}", "--seeds", "3"), "--seeds does not apply with --fit"),
        (("--fit", "{log}", "--policy", "fcfs,vtc"), "one policy"),
        (("--fit", "{log}", "--profile", "mine.txt"), "name a .yaml file"),
        (("--fit", "{log}", "--profile", "/nowhere/mine.yaml"), "there is no folder /nowhere"),
        (("--fit", "{log}", "--columns", "speed=x"), "expected KIND=NAME"),
        (("--fit", "{log}", "--columns", "end=x, end=y"), "end is named twice"),
        (("--fit", "{log}", "--engine", "steam"), "unknown engine"),
        (("--fit", "absent.csv"), "absent.csv"),
        (("{log}", "--profile", "mine.yaml"), "needs --fit"),
        (("{log}", "--columns", "arrival=x"), "no column 'x', which --columns names as arrival"),
        ((), "no workload"),
    ],
)
def test_what_is_wrong_is_one_line(
    log: Path, arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headgate("simulate", *(argument.format(log=log) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err


@pytest.mark.parametrize("text", ['{"resourceSpans": []}', '{"ttfts": [0.1]}', "[1, 2]"])
def test_a_log_in_json_is_told_from_a_csv(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.json"
    path.write_text(text + " " * 70_000)
    assert headgate("simulate", "--fit", str(path)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "headgate trace" in printed.err
