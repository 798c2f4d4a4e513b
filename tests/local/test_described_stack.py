"""The local stack as headgate.yaml describes it, in the background: the pools' names, models, workers and classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client
from tests.support.local.stack import serve
from tests.support.warm_commands import run_warm

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
DESCRIBED = """
slo_classes: {normal: {first_token_s: 60}, night: {first_token_s: 3600, deferred: true}}
pools:
  chat:
    model: s3://my-models/llama-3-8b/
    count: {min: 2, max: 4}
    slots: 6
    batch: 4
  code:
    model: s3://my-models/coder/
    slo_classes: {usual: {first_token_s: 60}}
  far:
    servers:
    - {url: URL, model: headgate-modelled, slots: 4, batch: 2}
"""
MODELS = {"chat": "llama-3-8b", "code": "coder", "far": "headgate-modelled"}


def headgate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headgate.cli", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * HANG_S, check=False, env=environment)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    home = tmp_path_factory.mktemp("described")
    file = home / "headgate.yaml"
    server = serve(home / "server")
    file.write_text(DESCRIBED.replace("URL", server.openai_base_url))
    local = ("local", "--file", str(file), "--port", "0", "--start-timeout", str(HANG_S))
    key = server.api_keys["default"]
    started = headgate(*local, "--detach", "--json", "--home", str(home), ENGINE_API_KEY=key)
    assert started.returncode == 0, started.stderr
    yield json.loads(started.stdout)
    assert headgate("local", "stop", "--home", str(home)).returncode == 0
    assert server.stop() == 0


def client(stack: dict[str, Any]) -> OpenAI:
    return OpenAI(base_url=stack["openai_base_url"], api_key=stack["api_keys"]["quiet"], max_retries=0, timeout=HANG_S)


def test_each_part_of_the_file_has_its_processes(stack: dict[str, Any]) -> None:
    roles = [process["role"] for process in stack["processes"]]
    assert (roles.count("worker"), roles.count("gate"), roles.count("executor")) == (4, 4, 1)
    assert stack["pools"] == MODELS


@pytest.mark.parametrize("model", MODELS.values())
def test_each_pool_s_model_answers(stack: dict[str, Any], model: str) -> None:
    answer = client(stack).completions.create(model=model, prompt="once upon", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_a_pool_s_own_classes_replace_those_of_the_stack(stack: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match="usual"):
        client(stack).completions.create(
            model="coder", prompt="a", max_tokens=2, extra_body={"metadata": {"headgate_slo_class": "normal"}}
        )


@pytest.mark.parametrize("model", MODELS.values())
def test_lambda_invoke_reaches_each_pool(stack: dict[str, Any], model: str) -> None:
    body = {"api_key": stack["api_keys"]["quiet"], "model": model, "prompt": "hello", "max_tokens": 3}
    reply = aws_client("lambda", stack["aws_endpoint_url"]).invoke(
        FunctionName="headgate-invoke:live", Payload=json.dumps(body).encode()
    )
    assert json.loads(reply["Payload"].read())["usage"]["completion_tokens"] == 3


def test_the_file_s_classes_are_known(stack: dict[str, Any]) -> None:
    answer = client(stack).completions.create(
        model="llama-3-8b", prompt="once upon", max_tokens=2, extra_body={"metadata": {"headgate_slo_class": "night"}}
    )
    assert answer.choices[0].text


def test_a_class_that_the_file_does_not_have_is_refused(stack: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match="normal"):
        client(stack).completions.create(
            model="llama-3-8b", prompt="a", max_tokens=2, extra_body={"metadata": {"headgate_slo_class": "noon"}}
        )


@pytest.mark.parametrize(("option", "value"), [("--workers", "1"), ("--slots", "8"), ("--model", "m")])
def test_the_command_refuses_an_option_that_the_file_replaces(tmp_path: Path, option: str, value: str) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(DESCRIBED)
    refused = run_warm("local", "--file", str(file), option, value, environment=os.environ)
    assert refused.returncode != 0
    assert f"leave out {option}" in refused.stderr
