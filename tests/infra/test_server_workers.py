"""A pool whose servers run already: one small task for each, and no GPU instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_worker.service.options import parse_options
from tests.infra import templates
from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, MODEL, Template, actions, functions, of_type, statements, template_in

SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:vllm-AbCdEf"
SERVERS = [
    {"url": "http://one.internal:8000/v1", "model": "llama", "api_key_secret": SECRET},
    {"url": "http://two.internal:8000/v1", "model": "llama", "context_tokens": 8192, "slots": 32, "batch": 8},
]


@pytest.fixture(scope="module")
def made(synthesise: Synthesise) -> Template:
    pools = {"chat": {"servers": SERVERS, "drain_s": 300}, "code": {"model": MODEL, "image": IMAGE}}
    return template_in(synthesise(pools=pools))


@pytest.fixture(scope="module")
def tasks(made: Template) -> list[dict[str, dict[str, Any]]]:
    """The containers by name, of each task before a server."""
    return [each for each in templates.tasks(made) if each.keys() == {"gate", "worker"}]


def test_each_server_has_a_service(made: Template, tasks: list[dict[str, dict[str, Any]]]) -> None:
    names = {
        each["ServiceName"]: each["DesiredCount"]
        for each in of_type(made, "AWS::ECS::Service")
        if "DesiredCount" in each
    }
    assert {name: names[name] for name in names if "-server-" in name} == {
        "headgate-chat-server-0": 1,
        "headgate-chat-server-1": 1,
    }
    assert len(tasks) == 2
    assert len(of_type(made, "AWS::AutoScaling::AutoScalingGroup")) == 1, "that of the other pool"


def test_a_worker_forwards_to_its_server(tasks: list[dict[str, dict[str, Any]]]) -> None:
    options = [parse_options(each["worker"]["Command"][3:]) for each in tasks]
    assert [(each.engine, each.url, each.models) for each in options] == [
        ("openai", "http://one.internal:8000/v1", ["llama"]),
        ("openai", "http://two.internal:8000/v1", ["llama"]),
    ]
    assert [(each.slots, each.batch, each.context_tokens) for each in options] == [(64, 16, None), (32, 8, 8192)]
    for each, containers in zip(options, tasks, strict=True):
        assert each.drain_s < containers["worker"]["StopTimeout"] <= 120, "Fargate allows no more"


def test_the_servers_key_comes_from_its_secret(made: Template, tasks: list[dict[str, dict[str, Any]]]) -> None:
    assert [each["worker"].get("Secrets") for each in tasks] == [
        [{"Name": "ENGINE_API_KEY", "ValueFrom": SECRET}],
        None,
    ]
    readers = [owner for owner, each in statements(made) if each["Resource"] == SECRET]
    assert len(readers) == 1
    assert "ExecutionRole" in readers[0]


def test_a_worker_reads_no_model_and_writes_its_own_log(made: Template) -> None:
    (role,) = {owner for owner, _ in statements(made) if owner.startswith("ChatWorkerRole")}
    own = [each for owner, each in statements(made) if owner == role]
    assert not any(action.startswith("s3:") for each in own for action in actions(each))
    text = json.dumps(own)
    assert "LOG#chat" in text
    assert "LOG#code" not in text


def test_the_gate_knows_the_model_and_scales_nothing(made: Template) -> None:
    pools = json.dumps(functions(made)["headgate-sweep"]["Environment"]["Variables"]["HEADGATE_POOLS"])
    chat = pools.partition("code")[0]
    assert "llama" in chat
    assert "ecs_service" not in chat


def test_no_worker_is_an_alarm_and_missing_ones_are_not(made: Template) -> None:
    about = [each["AlarmDescription"] for each in of_type(made, "AWS::CloudWatch::Alarm")]
    chat = {text.rpartition("#")[2] for text in about if text.startswith("Pool chat:")}
    assert {"noworker", "logstands", "waitslong"} <= chat
    assert not {"workersmissing", "scalingfails"} & chat
