"""Node and Docker of the machine that deploys, as commands that these tests put into PATH."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headgate.deployment.model import Deployment
from headgate.doctor.before import check_docker, check_node
from headgate.doctor.finding import CheckResult
from tests.unit.doctor.tools import command, engine

ON_ARM, ON_X86 = "28.2.2 on linux/arm64", "28.2.2 on linux/amd64"
MODEL = {"model": "s3://models/chat/"}
IMAGE = f"a.example/worker@sha256:{64 * 'a'}"
SERVERS = {"servers": [{"url": "http://vllm.internal/v1", "model": "chat"}]}


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CDK_DOCKER", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        ("echo v22.1.0", CheckResult.OK),
        ("echo v18.20.1", CheckResult.FAILED),
        ("exit 1", CheckResult.FAILED),
        (None, CheckResult.FAILED),
    ],
)
def test_node(path: Path, lines: str | None, result: CheckResult) -> None:
    if lines is not None:
        command(path, "node", lines)
    assert check_node().result is result


@pytest.mark.parametrize(
    ("version", "platforms", "fields", "seen"),
    [
        (ON_ARM, "", {}, ""),
        (ON_X86, "", {}, "cannot build for linux/arm64"),
        (ON_X86, "linux/amd64, linux/arm64", {}, ""),
        (ON_ARM, "", {"pools": {"a": MODEL}}, "cannot build for linux/amd64"),
        (ON_ARM, "", {"pools": {"a": {**MODEL, "image": IMAGE}}}, ""),
        (ON_X86, "", {"front": "lambda", "pools": {"a": MODEL}}, ""),
        (ON_X86, "", {"front": "lambda", "pools": {"a": SERVERS}}, "cannot build for linux/arm64"),
    ],
)
def test_docker_builds_for_each_image(path: Path, version: str, platforms: str, fields: Any, seen: str) -> None:
    engine(path, version, platforms)
    found = check_docker(Deployment.model_validate(fields))
    assert found.result is (CheckResult.FAILED if seen else CheckResult.OK), found
    assert seen in found.seen


def test_a_deployment_without_images_needs_no_docker() -> None:
    pools = {"a": {**MODEL, "image": IMAGE}}
    found = check_docker(Deployment.model_validate({"front": "lambda", "pools": pools}))
    assert found.result is CheckResult.SKIPPED


def test_another_command_than_docker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(path, ON_ARM, name="finch")
    assert "no engine answers docker" in check_docker(Deployment()).seen
    monkeypatch.setenv("CDK_DOCKER", "finch")
    assert check_docker(Deployment()).result is CheckResult.OK
    assert os.environ["PATH"] == str(path), "no engine of this machine was asked"
