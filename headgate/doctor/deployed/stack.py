"""What AWS reports of a deployed stack: its state, outputs and resources (CloudFormation), and its services in ECS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from headgate.deployment.model import Deployment

_Client = Callable[[str], Any]
"""Makes an SDK client of the stack's region, by the name of the service."""


@dataclass(frozen=True, slots=True)
class DeployedStack:
    """`resources`: the physical ids by type."""

    name: str
    state: str
    outputs: Mapping[str, str]
    resources: Mapping[str, Sequence[str]]

    def of_type(self, kind: str) -> Sequence[str]:
        return self.resources.get(kind, ())

    def log_groups(self, part: str = "") -> list[str]:
        """Return the names of the stack's log groups that contain `part`."""
        return [name for name in self.of_type("AWS::Logs::LogGroup") if part in name]

    def services(self, end: str) -> list[str]:
        """Return the ARNs of the services in ECS with this end of their names, a regular expression."""
        return [arn for arn in self.of_type("AWS::ECS::Service") if re.search(f"{end}$", arn)]

    def function(self, end: str) -> str | None:
        """Return the function with this end of its name; None without one."""
        return next((name for name in self.of_type("AWS::Lambda::Function") if name.endswith(end)), None)


@dataclass(frozen=True, slots=True)
class Traffic:
    """As which tenant, and to which model, to send requests while parts of the stack are replaced. `run`: a name that
    no other run has."""

    base_url: str
    key: str
    model: str
    run: str


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a check looks at. `now`: Unix seconds. `traffic`: None unless the operator allowed changes."""

    client: _Client
    stack: DeployedStack
    deployment: Deployment
    now: float
    traffic: Traffic | None = None


def read_stack(client: _Client, name: str) -> DeployedStack | None:
    """Return the stack; None if there is none. Raises BotoCoreError, ClientError."""
    cloudformation = client("cloudformation")
    try:
        (found,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":
            return None
        raise
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
    resources: dict[str, list[str]] = {}
    for page in pages:
        for each in page["StackResourceSummaries"]:
            resources.setdefault(each["ResourceType"], []).append(each.get("PhysicalResourceId", ""))
    outputs = {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}
    return DeployedStack(name, found["StackStatus"], outputs, resources)


FRONT, WORKERS, BEFORE_SERVERS = "-front", "-workers", r"-server-\d+"
"""The ends of the services' names: fronts, workers of a pool, and a worker before a server that runs already."""
_DONE = "COMPLETED"


def place_of(service_arn: str) -> tuple[str, str]:
    """Return the names of cluster and service."""
    _, cluster, name = service_arn.rsplit(":", 1)[-1].split("/")
    return cluster, name


def services_of(ecs: Any, service_arn: str) -> Sequence[dict[str, Any]]:
    """Return the service as ECS describes it; nothing if there is none."""
    cluster, name = place_of(service_arn)
    found: Sequence[dict[str, Any]] = ecs.describe_services(cluster=cluster, services=[name])["services"]
    return found


def tasks_of(ecs: Any, service_arn: str) -> Sequence[dict[str, Any]]:
    """Return the running tasks of a service."""
    cluster, name = place_of(service_arn)
    arns = ecs.list_tasks(cluster=cluster, serviceName=name)["taskArns"]
    found: Sequence[dict[str, Any]] = ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else []
    return found


def rollouts_under_way(service: Mapping[str, Any]) -> list[str]:
    """Return the states of the service's deployments that are not complete."""
    return [each["rolloutState"] for each in service["deployments"] if each.get("rolloutState", _DONE) != _DONE]
