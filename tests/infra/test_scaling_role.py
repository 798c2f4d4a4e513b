"""What may scale: the desired counts of the pools' services, and the sweep alone chooses the tasks that stay."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.ecs import EcsService
from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, Template, functions, listed, role_of, statements, template_in
from tests.support.iam.policies import Call, Names, allows, policies
from tests.support.iam.recorder import calls_of
from tests.support.local.aws import aws_client

ARN = "arn:aws:ecs:us-east-1:123456789012:service/headgate/workers"
TASKS = [f"{number:032x}" for number in range(3)]
PROTECT = "ecs:UpdateTaskProtection"


def with_workers(synthesise: Synthesise) -> Template:
    pools = {"default": {"model": "s3://models/llama-3-8b/", "image": IMAGE, "count": {"min": 0, "max": 2}}}
    return template_in(synthesise(pools=pools))


def protection_of(cluster: str) -> set[Call]:
    """Return what the scaler's own request to protect tasks needs. Nothing is sent: moto lacks the call."""
    client, found = aws_client("ecs", "http://unused"), set[Call]()

    def answered(params: dict[str, Any], **_: object) -> tuple[SimpleNamespace, dict[str, Any]]:
        found.update(calls_of("POST", "/", "", params["headers"]["X-Amz-Target"], params["body"]))
        return SimpleNamespace(status_code=200), {"protectedTasks": [], "failures": []}

    client.meta.events.register("before-call.ecs.UpdateTaskProtection", answered)
    asyncio.run(EcsService(client, cluster, "workers").keep(TASKS))
    return found


@pytest.mark.skipif(find_spec("aws_cdk") is None, reason="`make synth` installs aws_cdk and runs these tests")
def test_scaling_names_one_service() -> None:
    from aws_cdk import App, Stack
    from aws_cdk import aws_iam as iam
    from aws_cdk.assertions import Template as Made

    from infra.roles import allow_scaling

    stack = Stack(App(), "Probe")
    allow_scaling(iam.Role(stack, "Sweep", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com")), [ARN])
    (policy,) = Made.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == ["ecs:DescribeServices", "ecs:UpdateService"]
    assert statement["Resource"] == ARN


def test_only_the_sweep_protects_tasks_and_only_those_of_its_cluster(synthesise: Synthesise) -> None:
    made = with_workers(synthesise)
    names = Names(made)
    sweep = policies(made, role_of(functions(made)["headgate-sweep"]))
    own = protection_of(names.logical_id("AWS::ECS::Cluster", "DefaultCluster").lower())
    assert {(call.action, call.resource.rpartition("/")[2]) for call in own} == {(PROTECT, task) for task in TASKS}
    assert all(allows(sweep, call) for call in own)
    assert not any(allows(sweep, call) for call in protection_of("another-cluster"))
    assert len([1 for _, each in statements(made) if PROTECT in listed(each["Action"])]) == 1
