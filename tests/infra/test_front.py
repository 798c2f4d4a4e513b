"""The front on Fargate: what a task runs, how long its answers may take, and how it is replaced."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.settings.config import load_config
from infra import bundle
from tests.infra.conftest import Synthesise
from tests.infra.templates import Template, of_type, tasks, template_in, variables_of

ROOT = Path(__file__).parents[2]


def containers(template: Template) -> dict[str, dict[str, Any]]:
    (only,) = tasks(template)
    return only


def attributes(resource: dict[str, Any], key: str) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in resource[key]}


def test_a_task_runs_a_front_a_gate_process_and_the_batches(template: Template) -> None:
    found = containers(template)
    assert found.keys() == {"front", "gate-default", "batches"}
    assert found["batches"]["Command"] == ["python3", "-m", "dispatcher.executor", "--only-batches"]
    for container in found.values():
        assert container["ReadonlyRootFilesystem"] is True
        assert container["Essential"] is True
        module = container["Command"][2]
        assert container["Command"][:2] == ["python3", "-m"]
        assert importlib.util.find_spec(module) is not None
    for container in (found["front"], found["gate-default"]):
        assert container["Command"][3:5] == ["--host", "0.0.0.0"]  # noqa: S104
        assert int(container["Command"][6]) == container["PortMappings"][0]["ContainerPort"]


def test_a_task_has_the_variables_that_a_function_has(template: Template) -> None:
    (invoke,) = (
        each for each in of_type(template, "AWS::Lambda::Function") if each["FunctionName"] == "headgate-invoke"
    )
    for container in containers(template).values():
        variables = variables_of(container)
        assert {name: variables.get(name) for name in invoke["Environment"]["Variables"]} == invoke["Environment"][
            "Variables"
        ]
        assert variables["HEADGATE_FILES"]["Fn::Join"][1][0] == "s3:"


def test_it_runs_on_the_processor_for_which_the_bundle_is_built(template: Template) -> None:
    (task,) = of_type(template, "AWS::ECS::TaskDefinition")
    assert task["RuntimePlatform"]["CpuArchitecture"] == "ARM64"
    assert all("aarch64" in platform for platform in bundle.PLATFORMS)


def test_the_image_has_the_bundles_python_and_is_not_root() -> None:
    lines = (ROOT / bundle.IMAGE).read_text().splitlines()
    assert any(line.startswith("FROM ") and line.endswith(f"python:{bundle.PYTHON}-slim") for line in lines)
    assert "USER headgate" in lines


@pytest.mark.parametrize("deadline_s", [30, 900])
def test_no_timeout_is_shorter_than_the_longest_answer(synthesise: Synthesise, deadline_s: int) -> None:
    """An answer that is not streamed is silent until its end, and a stream that has begun may end."""
    made = template_in(synthesise(deadline_s=deadline_s))
    (balancer,) = of_type(made, "AWS::ElasticLoadBalancingV2::LoadBalancer")
    (targets,) = of_type(made, "AWS::ElasticLoadBalancingV2::TargetGroup")
    silence_s = int(attributes(balancer, "LoadBalancerAttributes")["idle_timeout.timeout_seconds"])
    drain_s = int(attributes(targets, "TargetGroupAttributes")["deregistration_delay.timeout_seconds"])
    command = containers(made)["front"]["Command"]
    assert deadline_s < silence_s <= 4000
    assert deadline_s < drain_s <= 3600
    assert float(command[command.index("--idle-s") + 1]) > silence_s, "the load balancer closes idle connections first"
    assert variables_of(containers(made)["front"])["HEADGATE_DEADLINE_S"] == str(deadline_s)


def test_a_front_without_workers_answers_itself(template: Template) -> None:
    (targets,) = of_type(template, "AWS::ElasticLoadBalancingV2::TargetGroup")
    assert targets["HealthCheckPath"] == "/health"


def test_a_deployment_that_does_not_start_is_taken_back(template: Template) -> None:
    (service,) = of_type(template, "AWS::ECS::Service")
    configuration = service["DeploymentConfiguration"]
    assert configuration["DeploymentCircuitBreaker"] == {"Enable": True, "Rollback": True}
    assert configuration["MinimumHealthyPercent"] == 100
    assert service["NetworkConfiguration"]["AwsvpcConfiguration"]["AssignPublicIp"] == "DISABLED"


def test_the_number_of_tasks_is_that_of_the_file(synthesise: Synthesise) -> None:
    made = template_in(synthesise(front_count={"min": 3, "max": 5}))
    (target,) = of_type(made, "AWS::ApplicationAutoScaling::ScalableTarget")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (3, 5)


def test_the_gates_settings_of_the_file_reach_every_process(synthesise: Synthesise) -> None:
    classes = {"chat": {"first_token_s": 20}, "night": {"first_token_s": 3600, "deferred": True}}
    made = template_in(synthesise(slo_classes=classes, throttling={"user": 60, "app": 600}))
    processes = [variables_of(each) for each in containers(made).values()]
    processes += [each["Environment"]["Variables"] for each in of_type(made, "AWS::Lambda::Function")]
    for variables in processes:
        texts = {name: value for name, value in variables.items() if isinstance(value, str)}
        config = load_config({"HEADGATE_WORKER_SECRET": "x" * 16, **texts})
        assert config.slo_classes is not None
        assert set(config.slo_classes.root) == {"chat", "night"}
        assert config.throttling is not None


def test_one_front_and_not_both(template: Template, lambda_template: Template) -> None:
    assert not of_type(template, "AWS::ApiGateway::RestApi")
    assert not of_type(lambda_template, "AWS::ECS::Service")
    assert not of_type(lambda_template, "AWS::ElasticLoadBalancingV2::LoadBalancer")


def test_the_invokers_of_the_file_may_invoke(template: Template, synthesise: Synthesise) -> None:
    tenant = "arn:aws:iam::123456789012:role/tenant"
    assert tenant not in json.dumps(template)
    made = template_in(synthesise(allowed_invokers=[tenant]))
    allowed = [each for each in of_type(made, "AWS::Lambda::Permission") if each["Principal"] == tenant]
    assert len(allowed) == 2
    assert {each["Action"] for each in allowed} == {"lambda:InvokeFunction"}


@pytest.mark.parametrize("front", ["fargate", "lambda"])
def test_fronts_alone_read_the_operators_token(front: str, synthesise: Synthesise) -> None:
    made = template_in(synthesise(front=front))
    (token,) = (
        name
        for name, each in made["Resources"].items()
        if each["Type"] == "AWS::SecretsManager::Secret" and "/operator" in each["Properties"]["Description"]
    )
    readers = [policy["PolicyName"] for policy in of_type(made, "AWS::IAM::Policy") if token in json.dumps(policy)]
    assert len(readers) == 1
    assert "FrontRole" in readers[0]
    if front == "lambda":
        environments = [each["Environment"]["Variables"] for each in of_type(made, "AWS::Lambda::Function")]
    else:
        environments = [variables_of(each) for each in containers(made).values()]
    named = [each["HEADGATE_OPERATOR_TOKEN_ARN"] for each in environments if "HEADGATE_OPERATOR_TOKEN_ARN" in each]
    assert named
    assert all(value == {"Ref": token} for value in named)
