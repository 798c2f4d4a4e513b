"""From where a pool's instances come: mixed types, Managed Instances, or a capacity block."""

from __future__ import annotations

from typing import Any

import pytest

from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, MODEL, Template, actions, of_type, statements, template_in
from tests.infra.test_names import physical_names

BLOCK = {
    "capacity": "capacity_block",
    "capacity_block": {"id": "cr-0123456789abcdef0", "zone": "us-east-2b"},
    "instance_types": ["p5.48xlarge"],
    "tensor_parallel": 8,
}
MANAGED = {"capacity": "managed_instances", "instance_types": ["g6e.xlarge", "g6e.2xlarge"]}
ZONES = ["us-east-2a", "us-east-2b"]


def pool(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "image": IMAGE, **fields}


@pytest.fixture(scope="module")
def block(synthesise: Synthesise) -> Template:
    return template_in(synthesise(region="us-east-2", zones=ZONES, pools={"chat": pool(**BLOCK)}))


@pytest.fixture(scope="module")
def managed(synthesise: Synthesise) -> Template:
    fields = {**MANAGED, "on_demand_base": 2, "spot_percent": 75}
    return template_in(synthesise(pools={"chat": pool(**fields)}))


def workers(template: Template) -> dict[str, Any]:
    (found,) = (each for each in of_type(template, "AWS::ECS::Service") if each["ServiceName"].endswith("-workers"))
    return found


def task(template: Template) -> dict[str, Any]:
    definitions = of_type(template, "AWS::ECS::TaskDefinition")
    (found,) = (each for each in definitions if {"worker"} <= {one["Name"] for one in each["ContainerDefinitions"]})
    return found


def test_a_capacity_block_is_used_in_its_zone_with_one_type(block: Template) -> None:
    (data,) = (each["LaunchTemplateData"] for each in of_type(block, "AWS::EC2::LaunchTemplate"))
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert data["InstanceType"] == "p5.48xlarge"
    (group,) = of_type(block, "AWS::AutoScaling::AutoScalingGroup")
    assert "MixedInstancesPolicy" not in group, "EC2 Auto Scaling refuses it for capacity blocks"
    (subnet,) = group["VPCZoneIdentifier"]
    resource = block["Resources"][subnet["Ref"]]["Properties"]
    assert (resource["AvailabilityZone"], resource["MapPublicIpOnLaunch"]) == ("us-east-2b", False)


def test_the_network_has_the_named_zones(block: Template) -> None:
    assert sorted({each["AvailabilityZone"] for each in of_type(block, "AWS::EC2::Subnet")}) == ZONES


@pytest.mark.parametrize("capacity", ["auto_scaling", "managed_instances"])
def test_a_pools_instances_start_in_its_zones(synthesise: Synthesise, capacity: str) -> None:
    fields = {"capacity": capacity, "zones": ["us-east-2b"]}
    made = template_in(synthesise(region="us-east-2", zones=ZONES, pools={"chat": pool(**fields)}))
    if capacity == "auto_scaling":
        (group,) = of_type(made, "AWS::AutoScaling::AutoScalingGroup")
        subnets = group["VPCZoneIdentifier"]
    else:
        (provider,) = of_type(made, "AWS::ECS::CapacityProvider")
        template = provider["ManagedInstancesProvider"]["InstanceLaunchTemplate"]
        subnets = template["NetworkConfiguration"]["Subnets"]
    assert subnets == workers(made)["NetworkConfiguration"]["AwsvpcConfiguration"]["Subnets"]
    found = {made["Resources"][each["Ref"]]["Properties"]["AvailabilityZone"] for each in subnets}
    assert found == {"us-east-2b"}


def test_managed_instances_are_of_the_named_types(managed: Template) -> None:
    assert not of_type(managed, "AWS::AutoScaling::AutoScalingGroup")
    providers = [each["ManagedInstancesProvider"] for each in of_type(managed, "AWS::ECS::CapacityProvider")]
    launches = {each["InstanceLaunchTemplate"]["CapacityOptionType"]: each for each in providers}
    assert launches.keys() == {"ON_DEMAND", "SPOT"}
    for each in launches.values():
        template = each["InstanceLaunchTemplate"]
        assert template["InstanceRequirements"]["AllowedInstanceTypes"] == ["g6e.xlarge", "g6e.2xlarge"]
        prices = [value for name, value in template["InstanceRequirements"].items() if "MaxPrice" in name]
        assert prices == [999_999], "else EC2 leaves out types with GPUs"
        assert template["LocalStorageConfiguration"] == {"UseLocalStorage": True}


def test_on_demand_base_and_spot_are_those_of_the_strategy(managed: Template) -> None:
    strategy = workers(managed)["CapacityProviderStrategy"]
    assert [(each.get("Base", 0), each["Weight"]) for each in strategy] == [(2, 25), (0, 75)]
    assert "DesiredCount" not in workers(managed)
    assert "LaunchType" not in workers(managed)


def test_a_task_on_managed_instances_has_only_what_is_possible_there(managed: Template) -> None:
    found = task(managed)
    assert found["RequiresCompatibilities"] == ["MANAGED_INSTANCES"]
    assert all("SourcePath" not in volume.get("Host", {}) for volume in found["Volumes"])
    for container in found["ContainerDefinitions"]:
        assert "SharedMemorySize" not in container.get("LinuxParameters", {})
    (worker,) = (each for each in found["ContainerDefinitions"] if each["Name"] == "worker")
    assert worker["ResourceRequirements"] == [{"Type": "GPU", "Value": "1"}]


@pytest.mark.parametrize(("spot", "base", "kinds"), [(0, 1, {"ON_DEMAND"}), (100, 0, {"SPOT"})])
def test_one_kind_of_managed_instances(synthesise: Synthesise, spot: int, base: int, kinds: set[str]) -> None:
    made = template_in(synthesise(pools={"chat": pool(**MANAGED, spot_percent=spot, on_demand_base=base)}))
    providers = [each["ManagedInstancesProvider"] for each in of_type(made, "AWS::ECS::CapacityProvider")]
    assert {each["InstanceLaunchTemplate"]["CapacityOptionType"] for each in providers} == kinds


def test_ecs_may_start_instances_with_their_role_and_no_other(managed: Template) -> None:
    (passing,) = (each for _, each in statements(managed) if "iam:PassRole" in actions(each))
    instance_role = passing["Resource"]["Fn::GetAtt"][0]
    profile = of_type(managed, "AWS::IAM::InstanceProfile")
    assert [each["Roles"] for each in profile] == [[{"Ref": instance_role}]]
    assert "RoleName" not in managed["Resources"][instance_role]["Properties"], "IAM's names are global"


def test_managed_instances_have_no_name_of_another_stack(managed: Template) -> None:
    assert all(name.startswith("headgate") for name in physical_names(managed))
