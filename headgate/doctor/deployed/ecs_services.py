"""The stack's services in ECS, by their ARNs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FRONT, WORKERS, BEFORE_SERVERS = "-front", "-workers", r"-server-\d+"
"""The ends of the services' names: fronts, workers of a pool, and a worker before a server that runs already."""
DONE = "COMPLETED"


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
    return [each["rolloutState"] for each in service["deployments"] if each.get("rolloutState", DONE) != DONE]
