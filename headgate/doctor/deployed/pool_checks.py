"""Rows of docs/operations.md about the instances and workers of the pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headgate.deployment.pool import Pool
from headgate.doctor.deployed.ecs_services import BEFORE_SERVERS, WORKERS, rollouts_under_way, services_of, tasks_of
from headgate.doctor.deployed.stack import Deployed
from headgate.doctor.finding import Finding, failed, ok, skipped

WORKER = "worker"


def instances_have_joined(deployed: Deployed, title: str) -> Finding:
    """Check that the cluster has enough active instances for the minimum number of workers of all pools."""
    ecs = deployed.client("ecs")
    (cluster, *_) = deployed.stack.of_type("AWS::ECS::Cluster")
    arns = ecs.list_container_instances(cluster=cluster)["containerInstanceArns"]
    if not arns:
        return failed(title, "no instance has joined the cluster", "see NoWorker in docs/operations.md")
    found = ecs.describe_container_instances(cluster=cluster, containerInstances=arns)["containerInstances"]
    active = [each["ec2InstanceId"] for each in found if each["status"] == "ACTIVE"]
    wanted = sum(pool.count.min for pool in deployed.deployment.pools.values() if pool.model is not None)
    seen = f"{len(active)} of {len(found)} instances are active"
    if len(active) < wanted:
        return failed(title, f"{seen}; headgate.yaml wants {wanted}", "see NoWorker in docs/operations.md")
    return ok(title, f"{seen}; `df /opt/headgate` on one shows its disk")


def pools_have_workers(deployed: Deployed, title: str) -> Finding:
    """Check that each service of workers has its tasks, and that they are of the last deployment and have one image."""
    arns = [*deployed.stack.services(WORKERS), *deployed.stack.services(BEFORE_SERVERS)]
    if not arns:
        return skipped(title, "no pool has a model or servers")
    ecs = deployed.client("ecs")
    found = [service for arn in arns for service in services_of(ecs, arn)]
    problems = [problem for service in found for problem in _problems(deployed, ecs, service)]
    if problems:
        return failed(title, "; ".join(problems), "see NoWorker in docs/operations.md, and the service's events")
    counts = ", ".join(f"{each['serviceName']} {each['runningCount']} of {each['desiredCount']}" for each in found)
    return ok(title, f"running tasks: {counts}")


def _problems(deployed: Deployed, ecs: Any, service: dict[str, Any]) -> Iterator[str]:
    name, running, desired = service["serviceName"], service["runningCount"], service["desiredCount"]
    pool = _pool(deployed, name)
    if running < desired:
        yield f"{name}: {running} of {desired} tasks run"
    if pool is not None and desired < pool.count.min:
        yield f"{name}: the desired count is {desired}, and headgate.yaml wants {pool.count.min}"
    if states := rollouts_under_way(service):
        yield f"{name}: a deployment is {states[0]}"
    images = {each["imageDigest"] for task in tasks_of(ecs, service["serviceArn"]) for each in _workers(task)}
    if len(images) > 1:
        yield f"{name}: its tasks run different images: {', '.join(sorted(images))}"


def _pool(deployed: Deployed, service: str) -> Pool | None:
    names = {f"{deployed.stack.name}-{name}{WORKERS}": pool for name, pool in deployed.deployment.pools.items()}
    return names.get(service)


def _workers(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in task.get("containers", []) if each["name"] == WORKER and "imageDigest" in each]
