"""The whole local stack as processes, for tests that look at it from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import boto3
import psutil
import pytest
from botocore.config import Config
from openai import OpenAI

from headgate.local.guardian import MARK_VARIABLE


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    openai_base_url: str
    aws_endpoint_url: str
    api_keys: dict[str, str]
    home: Path

    def openai(self, tenant: str = "quiet") -> OpenAI:
        return OpenAI(base_url=self.openai_base_url, api_key=self.api_keys[tenant], max_retries=0, timeout=60)

    def aws(self, service: str):
        return boto3.client(
            service,
            endpoint_url=self.aws_endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"total_max_attempts": 1}, read_timeout=60),
        )

    def invoke(self, payload: object, **arguments: object) -> dict[str, object]:
        reply = self.aws("lambda").invoke(
            FunctionName="headgate-invoke", Payload=json.dumps(payload).encode(), **arguments
        )
        return json.loads(reply["Payload"].read())

    @property
    def model(self) -> str:
        return self.openai().models.list().data[0].id


def start(home: Path, *options: str) -> Running:
    command = [sys.executable, "-m", "headgate.cli", "local", "--port", "0", "--json", "--home", str(home), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        logs = "\n".join(path.read_text()[-3000:] for path in (home / "logs").glob("*.log"))
        pytest.fail(f"the stack did not start (exit {process.wait(10)}): {logs}")
    return Running(process=process, home=home, **json.loads(line))


def stop(stack: Running, number: signal.Signals = signal.SIGINT) -> int:
    if stack.process.poll() is None:
        stack.process.send_signal(number)
    return stack.process.wait(30)


def line_state(stack: Running, tenant: str) -> dict[str, float]:
    found = stack.aws("dynamodb").get_item(
        TableName="headgate", Key={"pk": {"S": f"LINE#{tenant}"}, "sk": {"S": "STATE"}}, ConsistentRead=True
    )
    return {name: float(value["N"]) for name, value in found.get("Item", {}).items() if "N" in value}


def eventually(snapshot, holds, timeout_s: float = 60):
    """What `look` gives once it holds; fails with the last look after a bound that only a defect reaches."""
    deadline = time.monotonic() + timeout_s
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
