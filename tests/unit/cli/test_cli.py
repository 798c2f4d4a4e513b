"""The command line from outside: exit codes, one line for bad input, and a trace that is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def headgate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headgate.cli", *arguments]
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **environment}  # noqa: S108 - no file is made there
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean, timeout=60, check=False)


def test_help_and_version() -> None:
    told = headgate("--help")
    assert told.returncode == 0
    assert all(name in told.stdout for name in ("demo", "local", "invoke", "tenants"))
    assert headgate("--version").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bogus",), "bogus"),
        (("demo", "--seconds", "soon"), "--seconds"),
        (("demo", "--engine", "steam"), "--engine"),
        (("local", "--port", "99999"), "--port"),
        (("local", "--slots", "0"), "--slots"),
        (("demo", "--quiet", "nowhere.csv"), "nowhere.csv"),
        (("invoke", "hello"), "HEADGATE_BASE_URL"),
        (("invoke",), "prompt"),
        (("invoke", "--result", "x"), "--lambda"),
        (("invoke", "hello", "--base-url", "http://127.0.0.1:9/v1", "--key", "k"), "cannot be reached"),
        (("tenants", "create", "Not A Name"), "a-z"),
        (("tenants", "create", "a", "--weight", "-1"), "weight"),
        (("tenants", "create", "a", "--tier", "royal"), "royal"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], said: str) -> None:
    ended = headgate(*arguments, AWS_DEFAULT_REGION="us-east-1", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert ended.stdout == ""


def test_a_wrong_trace_is_named_by_file_line_and_column(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,1,1\n-3,a,1,1\n")
    ended = headgate("demo", "--flood", str(trace), "--engine", "modelled")
    assert ended.returncode == 2
    assert f"{trace}, line 3, column 'arrival_s'" in ended.stderr
    assert "Traceback" not in ended.stderr
