"""The desired count of an ECS service, with boto3 against moto's ECS."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from botocore.stub import Stubber

from dispatcher.ecs import KEPT_MINUTES, EcsService
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import FleetLoad, ScaleReport
from dispatcher.operations.scaling import Scaling
from dispatcher.operations.worker_count import ScaleSettings
from tests.support.local.aws import aws_client
from tests.support.world.virtual_time import LoopClock


@pytest.fixture
def ecs(moto_url: str) -> Any:
    client = aws_client("ecs", moto_url)
    client.create_cluster(clusterName="pool")
    container = {"name": "worker", "image": "worker", "memory": 128}
    client.register_task_definition(family="worker", containerDefinitions=[container])
    client.create_service(cluster="pool", serviceName="workers", taskDefinition="worker", desiredCount=2)
    yield client
    client.delete_service(cluster="pool", service="workers", force=True)


def desired(ecs: Any) -> int:
    (service,) = ecs.describe_services(cluster="pool", services=["workers"])["services"]
    return int(service["desiredCount"])


async def test_the_desired_count_is_read_and_set(ecs: Any) -> None:
    service = EcsService(ecs, "pool", "workers")
    assert (await service.count()).desired == 2
    await service.set(5)
    assert desired(ecs) == 5
    await service.set(0)
    assert (await service.count()).desired == desired(ecs) == 0


async def test_a_sweep_scales_the_service(ecs: Any) -> None:
    ecs.update_service(cluster="pool", service="workers", desiredCount=0)
    settings = ScaleSettings(workers_min=0, workers_max=4, scale_to_zero=True)
    scaling = Scaling(EcsService(ecs, "pool", "workers"), cast("Any", None), settings, LoopClock())
    waiting = FleetLoad(0, 0, 0, {"standard": 3}, 900.0, 0.0, 0.0)
    assert await scaling.sweep(waiting) == ScaleReport(1)
    assert desired(ecs) == 1


@pytest.mark.parametrize(("cluster", "service"), [("pool", "others"), ("others", "workers")])
async def test_a_missing_service_is_named(ecs: Any, cluster: str, service: str) -> None:
    with pytest.raises(StoreUnavailable, match="ECS"):
        await EcsService(ecs, cluster, service).count()
    with pytest.raises(StoreUnavailable, match="ECS refused update_service"):
        await EcsService(ecs, cluster, service).set(1)


# ── Protection: a stand-in answers, because moto lacks the call ────────────────────────────────────────────────────

TASKS = [f"{number:032x}" for number in range(12)]


@dataclass
class Protecting:
    """boto3's client for ECS, with this answer to UpdateTaskProtection."""

    failures: list[dict[str, str]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def update_task_protection(self, **arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        return {"protectedTasks": [], "failures": self.failures}


async def test_tasks_are_protected_in_tens_and_other_workers_are_left_out() -> None:
    client = Protecting([{"reason": "MISSING", "arn": TASKS[0]}])
    await EcsService(client, "pool", "workers").keep([*TASKS, "w-by-hand"])
    assert [each["tasks"] for each in client.asked] == [TASKS[:10], TASKS[10:]]
    given = {"cluster": "pool", "protectionEnabled": True, "expiresInMinutes": KEPT_MINUTES}
    assert all(each.items() >= given.items() for each in client.asked)


async def test_the_leaver_s_protection_of_the_last_scale_in_ends() -> None:
    client = Protecting()
    await EcsService(client, "pool", "workers").keep(TASKS[1:3], TASKS[0])
    assert [(each["tasks"], each["protectionEnabled"]) for each in client.asked] == [
        (TASKS[1:3], True),
        (TASKS[:1], False),
    ]


async def test_a_protection_that_is_refused_is_an_error() -> None:
    client = Protecting([{"reason": "DEPLOYMENT_BLOCKED", "arn": TASKS[0]}])
    with pytest.raises(StoreUnavailable, match="does not protect the other workers: DEPLOYMENT_BLOCKED"):
        await EcsService(client, "pool", "workers").keep(TASKS)


def test_the_request_is_valid_for_boto3() -> None:
    """The SDK checks names and types, and refuses the answer's parts that its model does not have."""
    client = aws_client("ecs", "http://unused")
    with Stubber(client) as stub:
        expected = {"cluster": "pool", "tasks": TASKS[:1], "protectionEnabled": True, "expiresInMinutes": KEPT_MINUTES}
        stub.add_response("update_task_protection", {"protectedTasks": [], "failures": []}, expected)
        asyncio.run(EcsService(client, "pool", "workers").keep(TASKS[:1]))
        stub.assert_no_pending_responses()
