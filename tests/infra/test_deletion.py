"""A rollback, a removed pool and `cdk destroy` end: nothing outlives what can still remove it, and nothing that is in
use is removed. CloudFormation deletes in the reverse order of the dependencies."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.infra.conftest import Synthesise
from tests.infra.templates import (
    IMAGE,
    MODEL,
    Template,
    actions,
    dependencies,
    ids_of_type,
    references,
    statements,
    template_in,
)

ASSOCIATION, PROVIDER = "AWS::ECS::ClusterCapacityProviderAssociations", "AWS::ECS::CapacityProvider"
GROUP, REMOVAL, SERVICE = "AWS::AutoScaling::AutoScalingGroup", "Custom::FleetRemoval", "AWS::ECS::Service"
CHAT = {"model": MODEL, "image": IMAGE}
CODE = {"model": "s3://models/code/", "image": IMAGE}


@pytest.fixture(scope="module")
def two_pools(synthesise: Synthesise) -> Template:
    return template_in(synthesise(pools={"chat": CHAT, "code": CODE}))


def hanging(template: Template) -> Iterator[str]:
    """Yield each Auto Scaling group that CloudFormation could not delete, because its instances are protected when the
    capacity provider lets go of them, with the reason."""
    resources = template["Resources"]
    for provider in ids_of_type(template, PROVIDER):
        managed = resources[provider]["Properties"].get("AutoScalingGroupProvider")
        if managed is None or managed["ManagedTerminationProtection"] != "ENABLED":
            continue
        (group,) = references(managed["AutoScalingGroupArn"])
        removals = [each for each in ids_of_type(template, REMOVAL) if group in dependencies(template, each)]
        own = [each for each in removals if resources[each]["Properties"]["GroupName"] == {"Ref": group}]
        if not own:
            yield f"{group}: nothing deletes it with force"
        elif own[0] not in dependencies(template, provider):
            yield f"{group}: {provider} may start instances before, or protect them after, {own[0]}"
        elif not _may_delete(template, own[0], group):
            yield f"{group}: when {own[0]} is deleted, its function may not delete the group"


def _may_delete(template: Template, removal: str, group: str) -> bool:
    resources = template["Resources"]
    (function,) = references(resources[removal]["Properties"]["ServiceToken"])
    (role,) = references(resources[function]["Properties"]["Role"])
    before = dependencies(template, removal)
    kept = {name: each for name, each in resources.items() if name in before}
    allowed = [each for owner, each in statements({"Resources": kept}) if owner == role]
    deletes = [each for each in allowed if "autoscaling:DeleteAutoScalingGroup" in actions(each)]
    return any(group in references(each["Resource"]) for each in deletes)


def test_each_group_is_deleted_with_force_between_its_provider_and_itself(two_pools: Template) -> None:
    assert list(hanging(two_pools)) == []
    assert len(ids_of_type(two_pools, GROUP)) == len(ids_of_type(two_pools, REMOVAL)) == 2


def test_instances_with_tasks_stay_protected_at_scale_in(two_pools: Template) -> None:
    """What the protection is for: ECS ends an instance when its last task has ended, and no other one."""
    for provider in ids_of_type(two_pools, PROVIDER):
        managed = two_pools["Resources"][provider]["Properties"]["AutoScalingGroupProvider"]
        assert managed["ManagedTerminationProtection"] == managed["ManagedDraining"] == "ENABLED"
        assert managed["ManagedScaling"]["Status"] == "ENABLED"


def test_a_group_has_no_instance_before_its_service(two_pools: Template) -> None:
    for group in ids_of_type(two_pools, GROUP):
        own = two_pools["Resources"][group]["Properties"]
        assert own["MinSize"] == "0"
        assert "DesiredCapacity" not in own


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (PROVIDER, "independent", "may start instances before, or protect them after"),
        (REMOVAL, "absent", "nothing deletes it with force"),
        (REMOVAL, "independent", "its function may not delete the group"),
    ],
)
def test_a_group_that_would_remain_is_found(two_pools: Template, kind: str, change: str, words: str) -> None:
    broken = copy.deepcopy(two_pools)
    name = min(ids_of_type(broken, kind))
    if change == "absent":
        del broken["Resources"][name]
    else:
        broken["Resources"][name]["DependsOn"] = []
    (found,) = hanging(broken)
    assert words in found


def test_services_end_before_their_capacity_providers_are_removed(two_pools: Template) -> None:
    """Else ECS says that the capacity provider is in use; at the creation, that it is not associated."""
    for service in ids_of_type(two_pools, SERVICE):
        strategies = two_pools["Resources"][service]["Properties"].get("CapacityProviderStrategy", [])
        for provider in references(strategies):
            before = dependencies(two_pools, service)
            (association,) = (
                name
                for name in ids_of_type(two_pools, ASSOCIATION)
                if provider in references(two_pools["Resources"][name]["Properties"])
            )
            assert association in before
            assert provider in dependencies(two_pools, association)


def test_a_pool_that_leaves_the_stack_changes_no_association(synthesise: Synthesise, two_pools: Template) -> None:
    """CloudFormation changes a resource that stays before it deletes the services that go."""
    alone = template_in(synthesise(pools={"chat": CHAT}))
    gone = two_pools["Resources"].keys() - alone["Resources"].keys()
    kinds = {two_pools["Resources"][name]["Type"] for name in gone}
    assert {SERVICE, ASSOCIATION, PROVIDER, REMOVAL, GROUP, "AWS::ECS::Cluster"} <= kinds
    for name in ids_of_type(alone, ASSOCIATION) | ids_of_type(alone, PROVIDER) | ids_of_type(alone, REMOVAL):
        assert alone["Resources"][name] == two_pools["Resources"][name]
    for name in alone["Resources"]:
        assert not dependencies(alone, name) & gone


def test_what_deletes_the_group_of_a_leaving_pool_has_the_right_until_then(two_pools: Template) -> None:
    """The right leaves with the pool, and not with an update of what stays."""
    owners: dict[str, list[Any]] = {}
    for name in ids_of_type(two_pools, "AWS::IAM::Policy"):
        text = two_pools["Resources"][name]["Properties"]
        if any("autoscaling:DeleteAutoScalingGroup" in actions(each) for each in text["PolicyDocument"]["Statement"]):
            owners[name] = [group for group in ids_of_type(two_pools, GROUP) if group in references(text)]
    assert sorted(map(len, owners.values())) == [1, 1]


def test_a_change_between_managed_instances_and_a_group_is_a_new_fleet(
    synthesise: Synthesise, fleet_template: Template
) -> None:
    managed = template_in(synthesise(pools={"default": {**CHAT, "capacity": "managed_instances"}}))
    for kind in (SERVICE, PROVIDER):
        fleets = [{name for name in ids_of_type(each, kind) if "Default" in name} for each in (fleet_template, managed)]
        assert all(fleets)
        assert not fleets[0] & fleets[1]
    assert not ids_of_type(managed, REMOVAL), "ECS itself ends Managed Instances"


def test_managed_instances_are_ended_while_their_role_has_its_rights(synthesise: Synthesise) -> None:
    made = template_in(synthesise(pools={"default": {**CHAT, "capacity": "managed_instances"}}))
    (provider,) = ids_of_type(made, PROVIDER)
    (policy,) = (name for name in ids_of_type(made, "AWS::IAM::Policy") if "InfrastructureRole" in name)
    assert policy in dependencies(made, provider)


def test_the_removal_is_a_function_of_the_bundle(fleet_template: Template) -> None:
    (removal,) = ids_of_type(fleet_template, REMOVAL)
    own = fleet_template["Resources"][removal]["Properties"]
    (function,) = references(own["ServiceToken"])
    settings = fleet_template["Resources"][function]["Properties"]
    module, _, attribute = settings["Handler"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))
    assert settings["Timeout"] < int(own["ServiceTimeout"]), "the function answers before CloudFormation gives up"


@pytest.mark.parametrize("kind", ["AWS::DynamoDB::Table", "AWS::S3::Bucket"])
def test_what_stays_is_what_the_documentation_says(fleet_template: Template, kind: str) -> None:
    kept = {name for name, each in fleet_template["Resources"].items() if _is_kept(each)}
    assert ids_of_type(fleet_template, kind) <= kept
    kinds = {fleet_template["Resources"][name]["Type"] for name in kept}
    assert kinds <= {"AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::Lambda::Version"}


def _is_kept(resource: dict[str, Any]) -> bool:
    return str(resource.get("DeletionPolicy", "Delete")).startswith("Retain")
