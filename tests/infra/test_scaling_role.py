"""The sweep may read and set the desired count of one ECS service, and nothing else of ECS."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

ARN = "arn:aws:ecs:us-east-1:123456789012:service/headgate/workers"


@pytest.mark.skipif(find_spec("aws_cdk") is None, reason="`make synth` installs aws_cdk and runs these tests")
def test_scaling_names_one_service() -> None:
    from aws_cdk import App, Stack
    from aws_cdk import aws_iam as iam
    from aws_cdk.assertions import Template

    from infra.roles import allow_scaling

    stack = Stack(App(), "Probe")
    allow_scaling(iam.Role(stack, "Sweep", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com")), [ARN])
    (policy,) = Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == ["ecs:DescribeServices", "ecs:UpdateService"]
    assert statement["Resource"] == ARN
