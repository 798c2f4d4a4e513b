"""`headgate local` in the background and its end, and the temporary folder of one in the foreground."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.hang_guard import HANG_S
from tests.support.local.stack import ROOT, descendants, eventually

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
COMMAND = [sys.executable, "-m", "headgate.cli", "local"]
START = ["--engine", "modelled", "--port", "0", "--start-timeout", str(HANG_S)]


def headgate_local(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with `folder` in place of the user's own folders, and of the one for temporary files."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "TMPDIR": str(folder)}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=HANG_S, check=False
    )


def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    started = headgate_local(tmp_path, *START, "--detach")
    state = json.loads((tmp_path / "headgate/local/local.json").read_text())
    try:
        assert started.returncode == 0, started.stderr
        pasted = [line for line in started.stdout.splitlines() if line.startswith(("export", "curl", "headgate"))]
        base_url = state["addresses"]["openai_base_url"]
        assert f"export OPENAI_BASE_URL={base_url} OPENAI_API_KEY={state['addresses']['api_keys']['quiet']}" in pasted
        curl = next(line for line in pasted if line.startswith("curl"))
        answer = subprocess.run(shlex.split(curl), capture_output=True, timeout=HANG_S, check=True)
        assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 32
        again = headgate_local(tmp_path, *START, "--detach")
        assert (again.returncode, again.stderr.splitlines()[-1].count("headgate local stop")) == (2, 1)
    finally:
        stopped = headgate_local(tmp_path, "stop")
    assert (stopped.returncode, base_url in stopped.stdout) == (0, True)
    assert not psutil.pid_exists(state["pid"])
    nothing = headgate_local(tmp_path, "stop")
    assert nothing.returncode == 2
    assert "no stack runs in the background" in nothing.stderr


def test_a_start_that_fails_gives_its_reason(tmp_path: Path) -> None:
    failed = headgate_local(tmp_path, "--engine", "modelled", "--port", "0", "--start-timeout", "0.001", "--detach")
    assert failed.returncode == 2
    assert "--start-timeout gives it more time" in failed.stderr
    assert not (tmp_path / "headgate/local/local.json").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_outlives_a_stack_in_the_foreground(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Neither a process nor its temporary folder."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    stack = subprocess.Popen([*COMMAND, *START, "--json"], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert stack.stdout is not None
    assert json.loads(stack.stdout.readline())["openai_base_url"]
    assert len(list(tmp_path.glob("headgate-*"))) == 1
    family = descendants(stack.pid)
    assert len(family) >= 3
    stack.send_signal(number)
    assert stack.wait(HANG_S) == code
    eventually(lambda: list(tmp_path.glob("headgate-*")), lambda found: not found)
    eventually(lambda: [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], lambda p: not p)
