"""The whole local stack as processes, for tests that look at it from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from openai import OpenAI

from headgate.local.guardian import MARK_VARIABLE
from tests.support.hang_guard import HANG_S
from tests.support.local.aws_client import aws_client

Found = TypeVar("Found")


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    openai_base_url: str
    aws_endpoint_url: str
    api_keys: dict[str, str]
    home: Path

    def openai(self, tenant: str = "quiet") -> OpenAI:
        return OpenAI(base_url=self.openai_base_url, api_key=self.api_keys[tenant], max_retries=0, timeout=HANG_S)

    def aws(self, service: str) -> Any:
        return aws_client(service, self.aws_endpoint_url)

    def invoke(self, payload: object, **arguments: object) -> dict[str, Any]:
        reply = self.aws("lambda").invoke(
            FunctionName="headgate-invoke", Payload=json.dumps(payload).encode(), **arguments
        )
        answer: dict[str, Any] = json.loads(reply["Payload"].read())
        return answer

    @property
    def model(self) -> str:
        return self.openai().models.list().data[0].id


def start(home: Path, *options: str) -> Running:
    command = [sys.executable, "-m", "headgate.cli", "local", "--port", "0", "--json", "--home", str(home)]
    command += ["--start-timeout", str(HANG_S), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        logs = "\n".join(path.read_text()[-3000:] for path in (home / "logs").glob("*.log"))
        pytest.fail(f"the stack did not start (exit {process.wait(HANG_S)}): {logs}")
    return Running(process=process, home=home, **json.loads(line))


def stop(stack: Running, number: signal.Signals = signal.SIGINT) -> int:
    if stack.process.poll() is None:
        stack.process.send_signal(number)
    return stack.process.wait(HANG_S)


def line_state(stack: Running, tenant: str) -> dict[str, float]:
    found = stack.aws("dynamodb").get_item(
        TableName="headgate", Key={"pk": {"S": f"LINE#{tenant}"}, "sk": {"S": "STATE"}}, ConsistentRead=True
    )
    return {name: float(value["N"]) for name, value in found.get("Item", {}).items() if "N" in value}


def eventually(snapshot: Callable[[], Found], holds: Callable[[Found], object]) -> Found:
    """Take snapshots until one holds, and return it. Fails with the last one after HANG_S seconds."""
    deadline = time.monotonic() + HANG_S
    while True:
        found = snapshot()
        if holds(found):
            return found
        assert time.monotonic() < deadline, f"never held; last: {found}"
        time.sleep(0.2)


def descendants(stack: Running) -> list[psutil.Process]:
    """Every process of this stack: they carry its mark."""
    mark = None
    for process in psutil.process_iter():
        try:
            if process.ppid() == stack.process.pid and MARK_VARIABLE in process.environ():
                mark = process.environ()[MARK_VARIABLE]
        except (psutil.Error, OSError):
            continue
    return [p for p in psutil.process_iter() if mark is not None and environ(p).get(MARK_VARIABLE) == mark]


def environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}
