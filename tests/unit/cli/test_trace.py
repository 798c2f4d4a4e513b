"""`headgate trace`: the calls of a gate's log and of spans, as a trace that `headgate simulate` reads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.model.commands import End
from headgate.serve.folder import DataFolder
from tests.unit.cli.command import headgate
from tests.unit.cli.gate_log import FIRST_TOKEN_S, WRITER, accept, make_folder, write, write_history

HEADER = "arrival_s,tenant,input_tokens,output_tokens,interaction,app,model,tier,ttft_s,latency_s"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = make_folder(tmp_path / "data")
    write_history(made)
    return made


def rows(text: str) -> list[list[str]]:
    header, *lines = text.splitlines()
    assert header == HEADER
    return [line.split(",") for line in lines]


def test_a_call_of_the_log_is_a_row_that_the_simulator_reads(
    folder: DataFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headgate("trace", "--data", str(folder.path), "--once") == 0
    written = capsys.readouterr().out
    ((arrival, *names, first_token, latency),) = rows(written)
    assert (arrival, *names) == ("0", "a", "10", "4", "", "chat", "m", "standard")
    assert float(first_token) >= FIRST_TOKEN_S
    assert float(latency) >= 0.0
    path = tmp_path / "trace.csv"
    path.write_text(written)
    assert headgate("simulate", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["tenants"]["a"]["served"] == 1


def test_a_workers_attempts_begin_with_their_orders(folder: DataFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("trace", "--data", str(folder.path), "--once", "--worker", "w-1", "--anonymous") == 0
    ((_, tenant, _, _, _, app, model, _, first_token, _),) = rows(capsys.readouterr().out)
    assert (tenant, app, model, float(first_token)) == ("tenant-1", "app-1", "model-1", FIRST_TOKEN_S)
    assert headgate("trace", "--data", str(folder.path), "--once", "--worker", "w-9") == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "note: The log has no answered call of worker 'w-9'; it has those of w-1.\n"


def test_later_calls_are_written_as_they_end(folder: DataFolder) -> None:
    command = [sys.executable, "-m", "headgate.cli", "trace", "--data", str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == HEADER
        assert process.stdout.readline().startswith("0,a,10,4,")
        write(folder.database, End(f"{WRITER}-2", 1, "failed", 10, 4, "a"), accept(9, "a"))
        write(folder.database, End(f"{WRITER}-3", 1, "done", 20, 5, "b", "", 0.5))
        line = process.stdout.readline()
        assert line.split(",")[1:4] == ["b", "20", "5"]
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1 calls ended without an answer" in error


def test_spans_are_read_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attributes = [
        {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "12"}},
        {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "3"}},
        {"key": "tenant", "value": {"stringValue": "a,b"}},
    ]
    span = {"startTimeUnixNano": str(5 * 10**18), "endTimeUnixNano": str(5 * 10**18 + 10**9), "attributes": attributes}
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    assert headgate("trace", str(path)) == 0
    assert capsys.readouterr().out == f'{HEADER}\n0,"a,b",12,3,,,,,,\n'
    without_end = {**span, "endTimeUnixNano": "0"}
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span, without_end]}]}]}))
    assert headgate("trace", str(path)) == 0
    assert capsys.readouterr().err == "note: Calls that failed or have impossible figures are left out: 1.\n"
    assert headgate("trace", str(path), "--once") == 2
    assert "files of spans need no" in capsys.readouterr().err
    assert headgate("trace", str(tmp_path / "none.json")) == 2
    assert "none.json" in capsys.readouterr().err
