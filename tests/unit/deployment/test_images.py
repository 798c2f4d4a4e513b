"""`pools.X.image`: what ECS can pull, what it cannot, and what a role needs for ECR."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from headgate.deployment.images import ecr_image
from headgate.deployment.model import ConfigurationError, load
from headgate.deployment.pool import Pool

DIGEST = f"sha256:{'a' * 64}"
MODEL = "s3://models/llama/"
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("name", "repository", "is_common"),
    [
        (f"{ECR}/worker", "arn:aws:ecr:us-east-1:123456789012:repository/worker", True),
        (f"{ECR}/team/a_b/worker.x:v1", "arn:aws:ecr:us-east-1:123456789012:repository/team/a_b/worker.x", True),
        (
            "210987654321.dkr.ecr.eu-central-1.amazonaws.com/worker",
            "arn:aws:ecr:eu-central-1:210987654321:repository/worker",
            True,
        ),
        (
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/worker",
            "arn:aws-cn:ecr:cn-north-1:123456789012:repository/worker",
            True,
        ),
        (
            "123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/worker",
            "arn:aws-us-gov:ecr:us-gov-west-1:123456789012:repository/worker",
            False,
        ),
        (
            "123456789012.dkr-ecr.us-east-1.on.aws/worker",
            "arn:aws:ecr:us-east-1:123456789012:repository/worker",
            False,
        ),
    ],
)
def test_an_image_in_ecr_is_known_by_its_address(name: str, repository: str, is_common: bool) -> None:
    image = Pool(model=MODEL, image=f"{name}@{DIGEST}").image
    assert image == f"{name}@{DIGEST}"
    found = ecr_image(image)
    assert found is not None
    assert (found.repository_arn, found.digest, found.is_common) == (repository, DIGEST, is_common)


@pytest.mark.parametrize(
    "name",
    [
        "public.ecr.aws/a1b2c3/worker",
        "docker.io/me/worker",
        "me/worker:v1",
        "ghcr.io/me/worker",
        "registry.internal:5000/worker",
        "quay.io/a/b/c",
    ],
)
def test_an_image_elsewhere_is_pulled_without_credentials(name: str) -> None:
    image = Pool(model=MODEL, image=f"{name}@{DIGEST}").image
    assert image is not None
    assert ecr_image(image) is None


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (f"{ECR}/worker:latest", "should end with its digest"),
        (f"{ECR}/worker@sha256:{'A' * 64}", "in small letters, as docker push prints it"),
        (f"{ECR}/worker@sha512:{'a' * 128}", "should end with its digest"),
        (f"{ECR}/worker@{DIGEST}\n", "should end with its digest"),
        (f"{ECR}/worker@{DIGEST}@{DIGEST}", "should end with its digest"),
        (f"{ECR}@{DIGEST}", "should name its registry and repository"),
        (f"{ECR}/@{DIGEST}", "should name its registry and repository"),
        (f"{ECR}//worker@{DIGEST}", "should name its repository with small letters"),
        (f"{ECR}/Worker@{DIGEST}", "should name its repository with small letters"),
        (f"{ECR}/../worker@{DIGEST}", "should name its repository with small letters"),
        (f"{ECR}/{'w' * 256}@{DIGEST}", "should name its repository with small letters"),
        (f"{ECR}/worker:@{DIGEST}", "should have a tag of letters"),
        (f"https://{ECR}/worker@{DIGEST}", "without https:// or another scheme"),
        (f"docker://me/worker@{DIGEST}", "without https:// or another scheme"),
        (f"worker@{DIGEST}", "should name its registry and repository"),
        (f"12345678901.dkr.ecr.us-east-1.amazonaws.com/worker@{DIGEST}", "should have ECR's address"),
        (f"dkr.ecr.us-east-1.amazonaws.com/worker@{DIGEST}", "should have ECR's address"),
        (f"123456789012.ecr.us-east-1.amazonaws.com/worker@{DIGEST}", "should have ECR's address"),
        (f"123456789012.dkr.ecr.amazonaws.com/worker@{DIGEST}", "should have ECR's address"),
        (f"{ECR}.evil.example/worker@{DIGEST}", "should have ECR's address"),
        (f"123456789012.dkr.ecr.us-east-1.amazonaws.com.cn/worker@{DIGEST}", "should have the ending .cn if"),
        (f"123456789012.dkr.ecr.cn-north-1.amazonaws.com/worker@{DIGEST}", "should have the ending .cn if"),
        (f"localhost:5000/worker@{DIGEST}", "should be in a registry that the instances reach"),
        (f"127.0.0.1:5000/worker@{DIGEST}", "should be in a registry that the instances reach"),
        (f"registry.internal:99999/worker@{DIGEST}", "with a port of 1 to 65535"),
        (f"registry.internal:0/worker@{DIGEST}", "with a port of 1 to 65535"),
        (f"me:secret@registry.internal/worker@{DIGEST}", "should end with its digest"),
        (f" {ECR}/worker@{DIGEST}", "host name in small letters"),
        ("", "should end with its digest"),
    ],
)
def test_a_reference_that_nothing_can_pull_is_refused_with_a_sentence(image: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Pool(model=MODEL, image=image)
    (error,) = caught.value.errors()
    assert error["msg"].startswith("should ")
    assert words in error["msg"]


def test_an_image_of_another_partition_is_refused(tmp_path: Path) -> None:
    image = f"123456789012.dkr.ecr.us-gov-west-1.amazonaws.com/worker@{DIGEST}"
    path = tmp_path / "headgate.yaml"
    path.write_text(f"region: us-west-2\npools: {{chat: {{model: '{MODEL}', image: '{image}'}}}}")
    with pytest.raises(ConfigurationError, match="takes no credentials of us-west-2: copy it to a registry of us-west"):
        load(path)


def test_an_image_of_another_region_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(f"region: us-west-2\npools: {{chat: {{model: '{MODEL}', image: '{ECR}/worker@{DIGEST}'}}}}")
    assert load(path).pools["chat"].image == f"{ECR}/worker@{DIGEST}"
