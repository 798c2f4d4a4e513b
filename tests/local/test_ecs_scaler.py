"""The desired count of an ECS service, with boto3 against moto's ECS."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.scaling import FleetLoad, ScaleReport
from dispatcher.operations.scale import ScaleSettings
from dispatcher.operations.scaling import Scaling
from dispatcher.scalers.ecs import EcsService
from headgate.simulator.virtual_time import LoopClock
from tests.support.local.aws_client import aws_client


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
    scaling = Scaling(EcsService(ecs, "pool", "workers"), settings, LoopClock())
    waiting = FleetLoad(0, 0, 0, {"standard": 3}, 900.0, 0.0, 0.0)
    assert await scaling.sweep(waiting) == ScaleReport(1)
    assert desired(ecs) == 1


@pytest.mark.parametrize(("cluster", "service"), [("pool", "others"), ("others", "workers")])
async def test_a_missing_service_is_named(ecs: Any, cluster: str, service: str) -> None:
    with pytest.raises(StoreUnavailable, match="ECS"):
        await EcsService(ecs, cluster, service).count()
    with pytest.raises(StoreUnavailable, match="ECS refused update_service"):
        await EcsService(ecs, cluster, service).set(1)
