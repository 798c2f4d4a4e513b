"""Rows of docs/operations.md about what runs: the stack itself, its fronts, and the instances and workers of the pools.

The stack must be created, and its fronts healthy and reached with HTTPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from headgate.deployment.pool import Pool
from headgate.doctor.deployed.stack import (
    BEFORE_SERVERS,
    FRONT,
    WORKERS,
    Deployed,
    rollouts_under_way,
    services_of,
    tasks_of,
)
from headgate.doctor.finding import Finding, failed, ok, skipped

OUTPUTS = {
    *("OpenAiBaseUrl", "TableName", "OperatorShell", "OperatorToken", "AlarmTopic", "WorkerGroup", "VpcId"),
    *("InvokerPolicy", "AdministratorPolicy", "OperatorPolicy"),
}
_ISSUED = "ISSUED"
_HTTPS_S = 5.0


def stack_is_created(deployed: Deployed, title: str) -> Finding:
    """Check that CloudFormation has finished, and that each output is there."""
    stack = deployed.stack
    missing = sorted(OUTPUTS - stack.outputs.keys())
    if stack.state not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return failed(title, f"its state is {stack.state}", "look at the stack's events in CloudFormation")
    if missing:
        return failed(title, f"no output {', '.join(missing)}", "deploy again with this version")
    return ok(title, f"{stack.state}, {sum(map(len, stack.resources.values()))} resources")


def image_is_for_arm64(deployed: Deployed, title: str) -> Finding:
    """Check that the tasks of the front run on arm64."""
    fronts = deployed.stack.services(FRONT)
    if not fronts:
        return skipped(title, "the front is a function")
    tasks = tasks_of(deployed.client("ecs"), fronts[0])
    found = {
        attribute["value"]
        for task in tasks
        for attribute in task.get("attributes", [])
        if attribute["name"] == "ecs.cpu-architecture"
    }
    if found == {"arm64"}:
        return ok(title, f"{len(tasks)} tasks run on arm64")
    return failed(
        title, f"running tasks: {len(tasks)} on {', '.join(found) or 'nothing'}", "see NoFront in docs/operations.md"
    )


def fronts_are_healthy(deployed: Deployed, title: str) -> Finding:
    """Check that the load balancer has at least as many healthy targets as headgate.yaml wants."""
    groups = deployed.stack.of_type("AWS::ElasticLoadBalancingV2::TargetGroup")
    if not groups:
        return skipped(title, "the front is a function behind API Gateway")
    health = deployed.client("elbv2").describe_target_health(TargetGroupArn=groups[0])["TargetHealthDescriptions"]
    states = [each["TargetHealth"]["State"] for each in health]
    wanted = deployed.deployment.front_count.min
    seen = f"{states.count('healthy')} of {len(states)} targets are healthy"
    if states.count("healthy") >= wanted:
        return ok(title, seen)
    return failed(title, f"{seen}; headgate.yaml wants {wanted}", "see NoFront in docs/operations.md")


def function_answers(deployed: Deployed, title: str) -> Finding:
    """Check that a front in Lambda answers through API Gateway and the web adapter."""
    if deployed.deployment.front != "lambda":
        return skipped(title, "the front is a task")
    address = f"{deployed.stack.outputs.get('OpenAiBaseUrl', '').removesuffix('/v1')}/health"
    if problem := _problem_at(address):
        advice = "look at the log of headgate-front: its layer (the web adapter) may be missing in this region"
        return failed(title, problem, advice)
    return ok(title, f"{address} answers; a stream, and an answer of 285 s that ends with 504, are yours to try")


def https_answers(deployed: Deployed, title: str) -> Finding:
    """Check that the certificate is issued, and that the domain leads to the load balancer."""
    domain, certificate = deployed.deployment.domain, deployed.deployment.certificate
    if domain is None or certificate is None:
        return skipped(title, "headgate.yaml has no domain: only the VPC reaches the front, with HTTP")
    found = deployed.client("acm").describe_certificate(CertificateArn=certificate)["Certificate"]
    if found["Status"] != _ISSUED:
        return failed(title, f"the certificate is {found['Status']}", "finish its validation in ACM")
    address = f"https://{domain}/health"
    if problem := _problem_at(address):
        return failed(
            title, problem, f"point {domain} to the load balancer (CNAME or alias), and name it in the certificate"
        )
    return ok(title, f"{address} answers; the certificate is valid until {found['NotAfter']:%Y-%m-%d}")


def _problem_at(address: str) -> str:
    """Return why the address does not answer with 200; empty if it does."""
    try:
        answer = httpx.get(address, timeout=_HTTPS_S)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return f"{address}: {error or type(error).__name__}"
    return "" if answer.status_code == 200 else f"{address} answers {answer.status_code}"


_WORKER = "worker"


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
    return [each for each in task.get("containers", []) if each["name"] == _WORKER and "imageDigest" in each]
