"""Run a client's script and read the result of each step from what it prints.

A script prints `STEPS [names]` first, then `STEP {"step", "error"}` after each step; an empty error is a success.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ERROR_CHARACTERS_MAX = 300
STARTING = "start"
"""The step of a script that fails before it names its steps."""


@dataclass(frozen=True)
class StepResult:
    """`error`: the last line of the error; empty if the step succeeded."""

    step: str
    error: str


def run_script(command: list[str], environment: Mapping[str, str], folder: Path, limit_s: float) -> list[StepResult]:
    """Run the command in `folder`, which gets its output as files, and return the result of each step.

    The command and its processes are killed after `limit_s` seconds. Steps without a result have failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
        try:
            ending = f"status {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            ending = f"its time limit of {limit_s:.0f} s"
        finally:
            _kill_group(process)
    printed = (folder / "stdout").read_text(errors="replace")
    return read_steps(printed, f"the script ended with {ending}: {_last_line(folder / 'stderr')}")


def read_steps(printed: str, missing: str) -> list[StepResult]:
    """Return the result of each step that a script named. `missing`: the error of steps without a result."""
    names: list[str] = []
    errors: dict[str, str] = {}
    for line in printed.splitlines():
        kind, _, content = line.partition(" ")
        if kind == "STEPS":
            names = json.loads(content)
        elif kind == "STEP":
            found = json.loads(content)
            errors[found["step"]] = found["error"]
    return [StepResult(name, steady(errors.get(name, missing))) for name in names or [STARTING]]


def steady(error: str) -> str:
    """Return the error without ports, addresses and identifiers that differ from run to run, on one line."""
    text = re.sub(r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT", " ".join(error.split()))
    text = re.sub(r"\b0x[0-9a-f]{6,}\b|\b[0-9a-f]{16,}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "…", text)
    return text[:ERROR_CHARACTERS_MAX]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what the script started and did not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
