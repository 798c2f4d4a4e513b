"""Every combination of front, scale to zero and capacity: AWS's checks, cfn-lint, and timeouts in order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from headgate.deployment.model import Deployment
from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, MODEL, Template, functions, of_type, template_in

EXPLAINED = ("W3005", "W3010")
"""The CDK writes a DependsOn beside a reference that implies it; headgate.yaml may name zones, for a capacity block."""
FRONTS = ("fargate", "lambda")
PLACE: dict[str, Any] = {"region": "us-east-2", "zones": ["us-east-2a", "us-east-2c"]}
HTTPS = {"certificate": "arn:aws:acm:us-east-1:123456789012:certificate/a", "domain": "llm.example.com"}
CAPACITIES: dict[str, dict[str, Any]] = {
    "auto_scaling": {"instance_types": ["g6e.12xlarge", "g6e.24xlarge"], "tensor_parallel": 4, "spot_percent": 50},
    "managed_instances": {"capacity": "managed_instances", "spot_percent": 50, "deadline_s": 900},
    "capacity_block": {
        "capacity": "capacity_block",
        "capacity_block": {"id": "cr-0123456789abcdef0", "zone": "us-east-2c"},
        "instance_types": ["p5.48xlarge"],
        "drain_s": 900,
    },
}
SERVERS = [{"url": "http://a.internal:8000/v1", "model": "llama"}]
COMBINATIONS: dict[str, dict[str, Any]] = {
    f"{front}, {capacity}, {'to zero' if least == 0 else 'always one'}": {
        **PLACE,
        "front": front,
        "pools": {"chat": {"model": MODEL, "image": IMAGE, "count": {"min": least, "max": 3}, **CAPACITIES[capacity]}},
    }
    for front, capacity, least in product(FRONTS, CAPACITIES, (0, 1))
}
OTHERS: dict[str, dict[str, Any]] = {
    **{f"{front}, no workers": {"front": front} for front in FRONTS},
    **{f"{front}, servers": {"front": front, "pools": {"chat": {"servers": SERVERS}}} for front in FRONTS},
    "traces": {"traces": "xray", "traces_ratio": 1, "pools": {"chat": {"model": MODEL, "image": IMAGE}}},
    "two pools": {
        **PLACE,
        "front": "lambda",
        "pools": {
            "large": {"model": MODEL, "image": IMAGE, **CAPACITIES["capacity_block"]},
            "small": {"model": "s3://models/small/", "image": IMAGE, "zones": ["us-east-2a"]},
        },
    },
    "three zones": {**HTTPS, "zones": 3, "nat_gateways": 3, "alarm_address": "a@example.com", "retention_days": 7},
    "longest": {
        **HTTPS,
        "certificate": HTTPS["certificate"].replace("us-east-1", "eu-central-1"),
        "region": "eu-central-1",
        "allowed_invokers": ["arn:aws:iam::123456789012:role/t"],
        "deadline_s": 900,
    },
}
STACKS = COMBINATIONS | OTHERS


@pytest.fixture(scope="module")
def assemblies(synthesise: Synthesise) -> dict[str, Path]:
    """The templates' files. The synthesis itself fails if one of AWS's checks finds something without a reason."""
    return {name: synthesise(**fields) / "Headgate.template.json" for name, fields in STACKS.items()}


def lint(*paths: Path) -> tuple[int, str]:
    """Return cfn-lint's exit code and what it prints."""
    command = [str(Path(sys.executable).with_name("cfn-lint")), "--ignore-checks", *EXPLAINED]
    files = [word for path in paths for word in ("--template", str(path))]
    ended = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_there_are_all_combinations() -> None:
    assert len(COMBINATIONS) == len(FRONTS) * len(CAPACITIES) * 2 == 12


def test_cfn_lint_finds_nothing(assemblies: dict[str, Path]) -> None:
    assert lint(*assemblies.values()) == (0, "")


def test_what_is_wrong_is_found(assemblies: dict[str, Path], tmp_path: Path) -> None:
    good = next(iter(assemblies.values()))
    template = json.loads(good.read_text())
    (queue,) = (each for each in of_type(template, "AWS::SQS::Queue") if "RedrivePolicy" in each)
    queue["VisibilityTimeout"] = -1
    (tmp_path / "broken.json").write_text(json.dumps(template))
    status, said = lint(good, tmp_path / "broken.json")
    assert status != 0
    assert "E3034 -1 is less than the minimum of 0" in said


@pytest.mark.parametrize("name", STACKS)
def test_timeouts_are_in_order(assemblies: dict[str, Path], name: str) -> None:
    template = template_in(assemblies[name].parent)
    found = list(disorder(template, Deployment.model_validate(STACKS[name])))
    assert not found


@pytest.mark.parametrize(
    ("kind", "path", "value", "seen"),
    [
        ("AWS::ElasticLoadBalancingV2::LoadBalancer", "idle_timeout.timeout_seconds", "60", "the load balancer"),
        ("AWS::ElasticLoadBalancingV2::TargetGroup", "deregistration_delay.timeout_seconds", "60", "a replaced front"),
        ("AWS::Lambda::Function", "Timeout", 30, "headgate-invoke"),
        ("AWS::SQS::Queue", "VisibilityTimeout", 60, "the queue"),
        ("AWS::ECS::TaskDefinition", "StopTimeout", 30, "a worker"),
    ],
)
def test_timeouts_out_of_order_are_found(
    assemblies: dict[str, Path], kind: str, path: str, value: Any, seen: str
) -> None:
    name = "fargate, auto_scaling, always one"
    template = template_in(assemblies[name].parent)
    for resource in of_type(template, kind):
        _set(resource, path, value)
    assert any(seen in each for each in disorder(template, Deployment.model_validate(STACKS[name])))


def _set(value: Any, key: str, new: Any) -> None:
    """Set the property, or the attribute of a load balancer, of this name wherever it is."""
    if isinstance(value, list):
        for each in value:
            _set(each, key, new)
    elif isinstance(value, dict):
        if key in value:
            value[key] = new
        if value.get("Key") == key:
            value["Value"] = new
        for each in value.values():
            _set(each, key, new)


def disorder(template: Template, deployment: Deployment) -> Iterator[str]:
    """Yield what is shorter than what it must outlast."""
    longest_s = deployment.longest_s
    for balancer in of_type(template, "AWS::ElasticLoadBalancingV2::LoadBalancer"):
        if attribute(balancer, "LoadBalancerAttributes", "idle_timeout.timeout_seconds") <= longest_s:
            yield "the load balancer ends a silent answer before its deadline"
    for targets in of_type(template, "AWS::ElasticLoadBalancingV2::TargetGroup"):
        if attribute(targets, "TargetGroupAttributes", "deregistration_delay.timeout_seconds") <= longest_s:
            yield "a replaced front is stopped before its last answer's deadline"
    deployed = functions(template)
    for name in ("headgate-invoke", "headgate-execute"):
        if deployed[name]["Timeout"] < min(longest_s, 900):
            yield f"{name} ends before a call's deadline"
    for method in of_type(template, "AWS::ApiGateway::Method"):
        if method["Integration"]["TimeoutInMillis"] > deployed["headgate-front"]["Timeout"] * 1000:
            yield "the gateway waits longer than the front may run"
    (queue,) = (each for each in of_type(template, "AWS::SQS::Queue") if "RedrivePolicy" in each)
    if queue["VisibilityTimeout"] < 6 * deployed["headgate-execute"]["Timeout"]:
        yield "the queue shows a message again while it is handled"
    yield from _workers_disorder(template, deployment)


def _workers_disorder(template: Template, deployment: Deployment) -> Iterator[str]:
    pools = [pool for pool in deployment.pools.values() if pool.model is not None]
    drains_s = {pool.drain_s for pool in pools} | {110 for pool in pools if pool.capacity == "managed_instances"}
    for task in of_type(template, "AWS::ECS::TaskDefinition"):
        for container in task["ContainerDefinitions"]:
            command = container.get("Command", [])
            if container["Name"] == "worker" and "--drain-s" in command:
                drain_s = int(command[command.index("--drain-s") + 1])
                if container["StopTimeout"] <= drain_s:
                    yield "a worker is killed before it has drained"
                if drains_s and drain_s not in drains_s:
                    yield "a worker drains for another time than headgate.yaml says"


def attribute(resource: dict[str, Any], field: str, key: str) -> float:
    return float(next(each["Value"] for each in resource[field] if each["Key"] == key))
