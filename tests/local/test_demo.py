"""The demo as a person runs it, with the modelled engine: its JSON, its verdict's exit code, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headgate.machine.guardian import MARK_VARIABLE
from tests.support.hang_guard import HANG_S

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "headgate.cli", "demo", "--engine", "modelled", "--start-timeout", str(HANG_S)]
EXIT_CODES = {"passed": 0, "failed": 1, "inconclusive": 3}


@pytest.mark.parametrize("form", ["--no-aws", "--aws"])
def test_the_result_is_one_object_with_stable_keys(tmp_path: Path, form: str) -> None:
    ended = subprocess.run(
        [*COMMAND, form, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=HANG_S,
        check=False,
    )
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    assert not list(tmp_path.glob("headgate-*"))
    assert set(result) == {"runs", "verdict"}
    assert set(result["runs"]) == {"fcfs", "headgate"}
    for run in result["runs"].values():
        assert set(run) == {
            "tenants",
            "total_time_s",
            "throughput_tokens_per_s",
            "backlogged_s",
            "calibrations_per_s",
        }
        assert run["tenants"]["quiet"]["requests"] >= 20
        assert set(run["tenants"]) == {"quiet", "flood"}
        assert {"requests", "served", "failed", "ttft_p50_s", "ttft_p99_s", "share_while_backlogged"} <= set(
            run["tenants"]["quiet"]
        )
    sent = [sum(tenant["requests"] for tenant in run["tenants"].values()) for run in result["runs"].values()]
    assert sent[0] == sent[1] > 10  # the same workload, twice
    assert {check["name"] for check in result["verdict"]["checks"]} == {"quiet_ttft_p99", "throughput", "all_answered"}
    assert result["verdict"]["passed"] is (result["verdict"]["outcome"] == "passed")
    assert ended.returncode == EXIT_CODES[result["verdict"]["outcome"]]


def test_ctrl_c_stops_it_cleanly_and_leaves_nothing(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    family = _family_once_it_plays(demo)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=HANG_S)
    assert demo.returncode == 130
    assert "stopped" in output
    assert "Traceback" not in output
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not list(tmp_path.glob("headgate-*"))


def _family_once_it_plays(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its processes, when there is a worker among them."""
    while demo.poll() is None:
        family = [process for process in psutil.process_iter() if _is_child(process, demo.pid)]
        if any("gpu_worker" in " ".join(process.cmdline()) for process in family):
            return family
        time.sleep(0.05)
    raise AssertionError("the demo ended before it had started a worker")


def _is_child(process: psutil.Process, parent: int) -> bool:
    try:
        return process.ppid() == parent and MARK_VARIABLE in process.environ()
    except (psutil.Error, OSError):
        return False
