"""The reference of a container image, and the parts of one in Amazon ECR.

ECS pulls an image from ECR with the execution role of the task, which needs the rights to one repository
(infra/fleet/gpu_fleet.py). From any other registry it pulls without credentials, so that the image must be public.

Sources: the grammar of references of the distribution project (`reference.go`); ECR's user guide, "Amazon ECR private
registry" (registry URIs).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pydantic_core import PydanticCustomError

_NAME_CHARS_MAX = 255
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_COMPONENT = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_REGION = r"(?P<region>[a-z]{2}(-[a-z]+)+-[0-9])"
_ECR = (
    re.compile(rf"(?P<account>[0-9]{{12}})\.dkr\.ecr(?P<fips>-fips)?\.{_REGION}\.amazonaws\.com(?P<china>\.cn)?"),
    re.compile(rf"(?P<account>[0-9]{{12}})\.dkr-ecr(?P<fips>-fips)?\.{_REGION}\.on\.(aws|amazonwebservices\.com\.cn)"),
)
"""ECR's addresses: the common ones, and those that also have IPv6."""
_LIKE_ECR = re.compile(r"[.-]ecr\b|dkr|amazonaws")
_ECR_PUBLIC = "public.ecr.aws"
_PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("us-isob-", "aws-iso-b"), ("us-iso-", "aws-iso"))
_LOCAL = ("localhost", "127.", "0.0.0.0")  # noqa: S104 - refused


class EcrImage(NamedTuple):
    """An image in a private registry of ECR. `is_common`: the address is the one that the CDK writes too."""

    account: str
    region: str
    repository: str
    digest: str
    is_common: bool

    @property
    def repository_arn(self) -> str:
        partition = partition_of(self.region)
        return f"arn:{partition}:ecr:{self.region}:{self.account}:repository/{self.repository}"


def partition_of(region: str) -> str:
    """Return the partition of AWS in which a region is; credentials of one do not work in another."""
    return next((partition for beginning, partition in _PARTITIONS if region.startswith(beginning)), "aws")


def ecr_image(image: str) -> EcrImage | None:
    """Return the parts of a valid reference to a private registry of ECR; None for any other registry."""
    name, _, digest = image.partition("@")
    host, _, path = name.partition("/")
    repository = path.partition(":")[0]
    for pattern in _ECR:
        if found := pattern.fullmatch(host):
            is_common = pattern is _ECR[0] and not found["fips"]
            return EcrImage(found["account"], found["region"], repository, digest, is_common)
    return None


def check_image(image: str) -> str:
    """Return the reference. Raises PydanticCustomError with a sentence about what is wrong with it."""
    if problem := _problem(image):
        raise PydanticCustomError("image", "{problem}", {"problem": problem})
    return image


def _problem(image: str) -> str | None:
    """Return what is wrong with a reference and what to write instead; None if ECS can try to pull it."""
    name, _, digest = image.partition("@")
    if "://" in name:
        return "should begin with the registry, without https:// or another scheme"
    if not _DIGEST.fullmatch(digest):
        return (
            "should end with its digest, @sha256: and 64 hexadecimal digits in small letters, as docker push prints it"
        )
    host, _, rest = name.partition("/")
    if not rest:
        return "should name its registry and repository, such as public.ecr.aws/ALIAS/NAME@sha256:…"
    is_host = "." in host or ":" in host or host == "localhost"
    path, colon, tag = (rest if is_host else name).partition(":")
    if colon and not _TAG.fullmatch(tag):
        return "should have a tag of letters, digits and . _ - after the colon, or no colon"
    if not all(_COMPONENT.fullmatch(part) for part in path.split("/")) or len(name) > _NAME_CHARS_MAX:
        return "should name its repository with small letters, digits and single separators (- . _ /)"
    return _host_problem(host) if is_host else None


def _host_problem(host: str) -> str | None:
    port = host.partition(":")[2]
    if not _HOST.fullmatch(host) or ".." in host or (port and not 1 <= int(port) <= 65_535):
        return "should begin with the registry's host name in small letters, with a port of 1 to 65535 if it has one"
    if host.startswith(_LOCAL):
        return "should be in a registry that the instances reach, such as ECR"
    found = next((match for pattern in _ECR if (match := pattern.fullmatch(host))), None)
    if found is None:
        is_strange = _LIKE_ECR.search(host) and host != _ECR_PUBLIC
        return "should have ECR's address, ACCOUNT.dkr.ecr.REGION.amazonaws.com, with 12 digits" if is_strange else None
    is_chinese = host.endswith(".cn")
    if is_chinese != (partition_of(found["region"]) == "aws-cn"):
        return "should have the ending .cn if its region is in China, and else none"
    return None
