"""The order of a service's creation and deletion. CloudFormation knows a dependency only if the template has it."""

from __future__ import annotations

from aws_cdk import aws_ecs as ecs
from constructs import Construct, IDependable

from infra.network import Network


def put_after(service: Construct, task: ecs.TaskDefinition, network: Network, *others: IDependable) -> None:
    """Create the service after all that its tasks need to start, and delete it before, because they need the same to
    end: an instance without a route or without its role's policy cannot tell ECS that a task has stopped, and the
    service's deletion never ends.

    The CDK itself names the role of the task and its load balancer. This adds the network with its routes, endpoints
    and rules, the role that pulls the image and writes the log, and `others`.
    """
    service.node.add_dependency(network, task.obtain_execution_role(), *others)
