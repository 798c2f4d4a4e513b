"""The row of docs/operations.md about the workers of each pool: their number, their deployment and their images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.deployment.pool import Pool
from headgate.doctor.deployed.stack import Deployed
from headgate.doctor.finding import Finding, failed, ok

DONE = "COMPLETED"
WORKER = "worker"


def pools_have_workers(deployed: Deployed, title: str) -> Finding:
    """Whether each pool's service has its tasks, of the last deployment and with one image."""
    ecs = deployed.client("ecs")
    found = [service for arn in deployed.stack.workers() for service in _services(ecs, arn)]
    problems = [problem for service in found for problem in _problems(deployed, ecs, service)]
    if problems:
        return failed(title, "; ".join(problems), "see NoWorker in docs/operations.md, and the service's events")
    counts = ", ".join(f"{each['serviceName']} {each['runningCount']} of {each['desiredCount']}" for each in found)
    return ok(title, f"running tasks: {counts}")


def tasks_of(ecs: Any, service_arn: str) -> Sequence[dict[str, Any]]:
    """Return the running tasks of a service."""
    cluster, name = _place(service_arn)
    arns = ecs.list_tasks(cluster=cluster, serviceName=name)["taskArns"]
    found: Sequence[dict[str, Any]] = ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else []
    return found


def _services(ecs: Any, arn: str) -> Sequence[dict[str, Any]]:
    cluster, name = _place(arn)
    found: Sequence[dict[str, Any]] = ecs.describe_services(cluster=cluster, services=[name])["services"]
    return found


def _place(service_arn: str) -> tuple[str, str]:
    """Return the names of cluster and service."""
    _, cluster, name = service_arn.rsplit(":", 1)[-1].split("/")
    return cluster, name


def _problems(deployed: Deployed, ecs: Any, service: dict[str, Any]) -> Iterator[str]:
    name, running, desired = service["serviceName"], service["runningCount"], service["desiredCount"]
    pool = _pool(deployed, name)
    if running < desired:
        yield f"{name}: {running} of {desired} tasks run"
    if pool is not None and desired < pool.count.min:
        yield f"{name}: the desired count is {desired}, and headgate.yaml wants {pool.count.min}"
    states = [each["rolloutState"] for each in service["deployments"] if each.get("rolloutState", DONE) != DONE]
    if states:
        yield f"{name}: a deployment is {states[0]}"
    images = {each["imageDigest"] for task in tasks_of(ecs, service["serviceArn"]) for each in _workers(task)}
    if len(images) > 1:
        yield f"{name}: its tasks run different images: {', '.join(sorted(images))}"


def _pool(deployed: Deployed, service: str) -> Pool | None:
    names = {f"{deployed.stack.name}-{name}-workers": pool for name, pool in deployed.deployment.pools.items()}
    return names.get(service)


def _workers(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in task.get("containers", []) if each["name"] == WORKER and "imageDigest" in each]
