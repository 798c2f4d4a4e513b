"""What makes a rollback, a removed pool and `cdk destroy` end although ECS protects the instances of a pool.

The chain of dependencies is the order. It is created from left to right and deleted from right to left:

    Auto Scaling group -> removal -> capacity provider -> its association with the cluster -> service

So the service's tasks drain and end first, then ECS lets go of the group, then headgate-remove-fleet deletes the group
with force (functions/fleet_removal), then CloudFormation finds it deleted. The group has no instance before the service
exists, so none starts without a removal. Each pool has the right to delete its group in a policy of its own: a pool
that leaves the stack takes the right with it after its group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from aws_cdk import Aws, CfnElement, CustomResource, Duration, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from headgate.deployment.model import Deployment
from infra.checks.findings import acknowledge
from infra.functions import RUNTIME
from infra.roles import function_role
from infra.watching.observability import log_group
from infra.watching.watched import SERVICE

LONGEST = Duration.minutes(15)
"""Large instances need ten minutes to end."""
ANSWERED_WITHIN = Duration.minutes(20)


RemoveGroup = Callable[[Construct, autoscaling.AutoScalingGroup], CustomResource]
"""Makes the removal of a group (FleetRemoval.of)."""


class FleetRemoval(Construct):
    """The function, which all pools of a stack share."""

    def __init__(self, scope: Construct, construct_id: str, *, code: lambda_.Code, deployment: Deployment) -> None:
        super().__init__(scope, construct_id)
        log = log_group(self, "Log", deployment)
        self._role = function_role(self, "Role", log_group=log, worker_secret=None)
        self._role.add_to_policy(
            iam.PolicyStatement(actions=["autoscaling:DescribeAutoScalingGroups"], resources=["*"])
        )
        self._function = lambda_.Function(
            self,
            "Function",
            function_name=f"{Stack.of(self).stack_name}-remove-fleet",
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            handler="functions.fleet_removal.handler.handler",
            code=code,
            timeout=LONGEST,
            memory_size=256,
            environment={"POWERTOOLS_SERVICE_NAME": SERVICE},
            role=self._role,
            log_group=log,
            tracing=lambda_.Tracing.ACTIVE,
        )

    def of(self, scope: Construct, group: autoscaling.AutoScalingGroup) -> CustomResource:
        """Return what deletes the group with force, before CloudFormation deletes it. Whatever lets instances start in
        the group must depend on it."""
        name = group.auto_scaling_group_name
        place = f"arn:{Aws.PARTITION}:autoscaling:{Aws.REGION}:{Aws.ACCOUNT_ID}:autoScalingGroup:*"
        arn = f"{place}:autoScalingGroupName/{name}"
        deletion = iam.PolicyStatement(actions=["autoscaling:DeleteAutoScalingGroup"], resources=[arn])
        policy = iam.Policy(scope, "RemovalPolicy", roles=[self._role], statements=[deletion])
        own = Stack.of(self).get_logical_id(cast(CfnElement, group.node.default_child))
        found = "arn:<AWS::Partition>:autoscaling:<AWS::Region>:<AWS::AccountId>:autoScalingGroup:*"
        rule = f"AwsSolutions-IAM5[Resource::{found}:autoScalingGroupName/<{own}>]"
        acknowledge(policy, {rule: "Auto Scaling gives each group a random id; the name is this group's."})
        removal = CustomResource(
            scope,
            "Removal",
            service_token=self._function.function_arn,
            resource_type="Custom::FleetRemoval",
            properties={"GroupName": name},
            service_timeout=ANSWERED_WITHIN,
        )
        removal.node.add_dependency(policy, group)
        return removal
