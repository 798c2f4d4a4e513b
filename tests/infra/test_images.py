"""The role that pulls an image has the rights to its repository, wherever that is, and to no other one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from headgate.deployment.images import ecr_image
from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, MODEL, Template, actions, listed, of_type, plain, statements, template_in

DIGEST = f"sha256:{'a' * 64}"
PULL = {"ecr:BatchCheckLayerAvailability", "ecr:GetDownloadUrlForLayer", "ecr:BatchGetImage"}
ELSEWHERE = f"210987654321.dkr.ecr.eu-central-1.amazonaws.com/team/worker:v1@{DIGEST}"
FIPS = f"123456789012.dkr.ecr-fips.us-east-1.amazonaws.com/worker@{DIGEST}"
PUBLIC = f"public.ecr.aws/a1b2c3/worker@{DIGEST}"


def cannot_be_pulled(template: Template) -> Iterator[str]:
    """Yield each image in ECR for which the execution role of its task lacks a right."""
    for task in of_type(template, "AWS::ECS::TaskDefinition"):
        role = task["ExecutionRoleArn"]["Fn::GetAtt"][0]
        own = [each for owner, each in statements(template) if owner == role]
        for container in task["ContainerDefinitions"]:
            image = plain(container["Image"])
            found = ecr_image(image)
            if found is None:
                continue
            on_repository = {
                action
                for each in own
                if any(plain(resource) == found.repository_arn for resource in listed(each["Resource"]))
                for action in actions(each)
            }
            has_token = any("ecr:GetAuthorizationToken" in actions(each) and each["Resource"] == "*" for each in own)
            if not has_token or not on_repository >= PULL:
                yield f"{role} may not pull {image}"


def test_the_standard_fleet_can_pull_its_image(fleet_template: Template) -> None:
    assert list(cannot_be_pulled(fleet_template)) == []
    pulling = [each for each in of_type(fleet_template, "AWS::ECS::TaskDefinition") if "EC2" in json.dumps(each)]
    assert {plain(each["Image"]) for each in pulling[0]["ContainerDefinitions"]} == {IMAGE}


def test_fronts_can_pull_theirs(template: Template) -> None:
    images = [each["ContainerDefinitions"][0]["Image"] for each in of_type(template, "AWS::ECS::TaskDefinition")]
    assert [ecr_image(f"{plain(image).rpartition(':')[0]}@{DIGEST}") is not None for image in images] == [True]
    assert list(cannot_be_pulled(template)) == []


@pytest.mark.parametrize("right", sorted(PULL | {"ecr:GetAuthorizationToken"}))
def test_a_missing_right_is_found(fleet_template: Template, right: str) -> None:
    broken = copy.deepcopy(fleet_template)
    for _, statement in statements(broken):
        statement["Action"] = [each for each in actions(statement) if each != right] or ["none:None"]
    assert any("worker@" in each for each in cannot_be_pulled(broken))


def test_images_of_another_account_of_other_addresses_and_of_public_registries(synthesise: Synthesise) -> None:
    """Each synthesis also shows that the CDK has no warning about the image."""
    pools = {
        name: {"model": f"s3://models/{name}/", "image": image}
        for name, image in (("one", ELSEWHERE), ("two", FIPS), ("three", PUBLIC))
    }
    made = template_in(synthesise(pools=pools))
    assert list(cannot_be_pulled(made)) == []
    images = {
        plain(each["Image"])
        for task in of_type(made, "AWS::ECS::TaskDefinition")
        for each in task["ContainerDefinitions"]
        if each["Name"] == "worker"
    }
    assert images == {ELSEWHERE.replace(":v1", ""), FIPS, PUBLIC}
    public = [each for role, each in statements(made) if role.startswith("ThreeFleetTaskExecution")]
    assert not any(action.startswith("ecr:") for each in public for action in actions(each))
    assert MODEL.startswith("s3://models/")
