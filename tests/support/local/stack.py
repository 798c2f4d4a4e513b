"""`headgate local` (Running) and `headgate serve` (Served) as processes, for tests that look at them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest
from openai import AsyncOpenAI, OpenAI

from headgate.machine.guardian import MARK_VARIABLE
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client
from tests.support.warm_commands import run_warm

ROOT = Path(__file__).parents[3]
Found = TypeVar("Found")


class Usage(NamedTuple):
    requests: int
    input_tokens: int
    output_tokens: int
    service: float


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    openai_base_url: str
    openai_base_urls: list[str]
    aws_endpoint_url: str
    model: str
    pools: dict[str, str]
    api_keys: dict[str, str]
    operator_url: str
    operator_token: str
    processes: list[dict[str, Any]]
    home: Path
    order: str = "bwfq"

    def openai(self, tenant: str = "quiet", front: int = 0) -> OpenAI:
        url = self.openai_base_urls[front]
        return OpenAI(base_url=url, api_key=self.api_keys[tenant], max_retries=0, timeout=HANG_S)

    def async_openai(self, tenant: str = "quiet", front: int = 0) -> AsyncOpenAI:
        url = self.openai_base_urls[front]
        return AsyncOpenAI(base_url=url, api_key=self.api_keys[tenant], max_retries=0, timeout=HANG_S)

    def of_role(self, role: str) -> list[dict[str, Any]]:
        return [process for process in self.processes if process["role"] == role]

    def kill(self, role: str, number: int = 0) -> None:
        """Kill -9 the process of this role and number."""
        os.kill(self.of_role(role)[number]["pid"], signal.SIGKILL)

    def headgate(self, *arguments: str) -> dict[str, Any]:
        """Run a command with --json against the stack's table, as an operator does, and return its object."""
        variables = {"AWS_ENDPOINT_URL": self.aws_endpoint_url, "AWS_DEFAULT_REGION": "us-east-1"}
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "HEADGATE_ORDER": self.order}
        return run_json(*arguments, environment={**os.environ, **variables, **keys})

    def top(self) -> dict[str, Any]:
        return self.headgate("top", "--once")

    def aws(self, service: str) -> Any:
        return aws_client(service, self.aws_endpoint_url)

    def invoke(self, payload: object, **arguments: object) -> dict[str, Any]:
        reply = self.aws("lambda").invoke(
            FunctionName="headgate-invoke", Payload=json.dumps(payload).encode(), **arguments
        )
        answer: dict[str, Any] = json.loads(reply["Payload"].read())
        return answer


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    openai_base_url: str
    openai_base_urls: list[str]
    data: str
    model: str
    api_keys: dict[str, str]
    operator_url: str
    processes: list[dict[str, Any]]

    def openai(self, key: str) -> OpenAI:
        return OpenAI(base_url=self.openai_base_url, api_key=key, max_retries=0, timeout=HANG_S)

    def pid(self, role: str) -> int:
        return int(next(process["pid"] for process in self.processes if process["role"] == role))

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(HANG_S)


def start(home: Path, *options: str) -> Running:
    """Start `headgate local` with its data in `home`."""
    process, announced = _launch(["local", "--home", str(home), *options], home / "logs")
    order = options[options.index("--order") + 1] if "--order" in options else "bwfq"
    return Running(process=process, home=home, order=order, **announced)


def serve(data: Path, *options: str) -> Served:
    """Start `headgate serve` with the modelled engine and its data in `data`, without this machine's account."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADGATE_"))}
    command = ["serve", "--engine", "modelled", "--data", str(data), *options]
    process, announced = _launch(command, data / "logs", clean)
    return Served(process=process, **announced)


def _launch(
    command: Sequence[str], logs: Path, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Return a process of the command and what it announces once it is ready."""
    name, *options = command  # what stands after -- in the options is for vLLM
    own = [name, "--port", "0", "--json", "--start-timeout", str(HANG_S)]
    words = [sys.executable, "-m", "headgate.cli", *own, *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        tails = "\n".join(path.read_text()[-3000:] for path in logs.glob("*.log"))
        pytest.fail(f"{name} did not start (exit {process.wait(HANG_S)}): {tails}")
    announced: dict[str, Any] = json.loads(line)
    return process, announced


def stop(stack: Running, number: signal.Signals = signal.SIGINT) -> int:
    if stack.process.poll() is None:
        stack.process.send_signal(number)
    return stack.process.wait(HANG_S)


def run_json(*arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run `headgate … --json` and return the object that it prints."""
    ended = run_warm(*arguments, "--json", environment=os.environ if environment is None else environment)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def running(stack: Running, tenant: str) -> int:
    """Count the tenant's calls that hold a slot, as the log says."""
    return sum(found["running"] for found in stack.top()["tenants"] if found["tenant"] == tenant)


def usage(stack: Running, tenant: str) -> Usage:
    """What the tenant was charged so far, exact to the token."""
    return total(stack.headgate("usage", "--tenant", tenant)["usage"])


def total(rows: Sequence[Mapping[str, Any]]) -> Usage:
    fields = ("requests", "input_tokens", "output_tokens", "service")
    return Usage(*(sum(row[field] for row in rows) for field in fields))


def eventually(snapshot: Callable[[], Found], holds: Callable[[Found], object]) -> Found:
    """Take snapshots until one holds, and return it. Fails with the last one after HANG_S seconds."""
    deadline = time.monotonic() + HANG_S
    while True:
        found = snapshot()
        if holds(found):
            return found
        assert time.monotonic() < deadline, f"never held; last: {found}"
        time.sleep(0.2)


def charges(snapshot: Callable[[], Usage], requests: int) -> Usage:
    """Return the charges once so many requests are charged: an answer may end before its charge is in the log."""
    return eventually(snapshot, lambda found: found.requests >= requests)


def descendants(stack_pid: int) -> list[psutil.Process]:
    """Every process of the stack that this process has started: they carry its mark."""
    mark = None
    for process in psutil.process_iter():
        try:
            if process.ppid() == stack_pid and MARK_VARIABLE in process.environ():
                mark = process.environ()[MARK_VARIABLE]
        except (psutil.Error, OSError):
            continue
    return [p for p in psutil.process_iter() if mark is not None and environ(p).get(MARK_VARIABLE) == mark]


def environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}
