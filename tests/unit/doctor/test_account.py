"""The checks before a deployment, against moto: its STS, SSM and EC2 answer, Service Quotas is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from headgate.deployment.pool import CapacityBlock, Pool, Range
from headgate.doctor.before import BOOTSTRAP_PARAMETER, AwsAccount, PoolFleet, fleet_of, judged_block
from headgate.doctor.finding import CheckResult, Finding
from tests.unit.cli.command import headgate
from tests.unit.doctor.tools import command, engine

REGION = "us-east-1"
XLARGE = {"g": (4, 4)}


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account of moto's, in this process."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield


def found(check: str, *fleets: PoolFleet, zones: int | Sequence[str] = 2) -> Finding:
    return next(finding for finding in AwsAccount(REGION).findings(fleets, zones) if finding.check == check)


def bootstrapped(version: str) -> None:
    boto3.client("ssm", REGION).put_parameter(Name=BOOTSTRAP_PARAMETER, Value=version, Type="String")


class Quotas:
    """Service Quotas with one value for every quota. Moto knows no quota of Lambda or of GPU instances, and no default.

    `own` None: the account has no value of its own, only AWS's default. `default` None: the caller may not read it.
    """

    def __init__(self, own: float | None, default: float | None) -> None:
        self.exceptions = boto3.client("service-quotas", REGION).exceptions
        self.own, self.default = own, default

    def get_service_quota(self, **_: str) -> dict[str, Any]:
        if self.own is None:
            raise self.exceptions.NoSuchResourceException(
                {"Error": {"Code": "NoSuchResourceException"}}, "GetServiceQuota"
            )
        return {"Quota": {"Value": self.own}}

    def get_aws_default_service_quota(self, **_: str) -> dict[str, Any]:
        if self.default is None:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetAWSDefaultServiceQuota")
        return {"Quota": {"Value": self.default}}


SetQuota = Callable[..., None]


@pytest.fixture(autouse=True)
def set_quota(account: None, monkeypatch: pytest.MonkeyPatch) -> SetQuota:
    make = AwsAccount.client

    def set_to(own: float | None, default: float | None = None) -> None:
        quotas = Quotas(own, default)
        monkeypatch.setattr(
            AwsAccount, "client", lambda self, name: quotas if name == "service-quotas" else make(self, name)
        )

    set_to(1000.0)
    return set_to


def test_without_a_region_nothing_else_is_checked() -> None:
    (only,) = AwsAccount().findings()
    assert (only.check, only.result) == ("region", CheckResult.FAILED)
    assert "AWS_REGION" in only.advice


def test_the_caller_is_named() -> None:
    assert found("credentials").result is CheckResult.OK
    assert "123456789012" in found("credentials").seen


def test_an_account_that_is_not_bootstrapped() -> None:
    assert found("bootstrap").result is CheckResult.FAILED
    assert "cdk bootstrap" in found("bootstrap").advice


@pytest.mark.parametrize(
    ("version", "result"), [("21", CheckResult.OK), ("5", CheckResult.FAILED), ("new", CheckResult.FAILED)]
)
def test_the_version_of_the_bootstrap(version: str, result: CheckResult) -> None:
    bootstrapped(version)
    assert found("bootstrap").result is result


def test_the_role_that_deploys_can_be_assumed() -> None:
    assert found("permission to deploy").result is CheckResult.OK


@pytest.mark.parametrize(
    ("own", "default", "result"),
    [
        (10.0, 1000.0, CheckResult.FAILED),
        (1000.0, 10.0, CheckResult.OK),
        (None, 1000.0, CheckResult.OK),
        (None, 10.0, CheckResult.FAILED),
        (None, None, CheckResult.WARNING),
    ],
)
def test_the_quota_of_lambda(
    set_quota: SetQuota, own: float | None, default: float | None, result: CheckResult
) -> None:
    set_quota(own, default)
    assert found("quota of Lambda").result is result


def test_instance_types_and_their_quotas(set_quota: SetQuota) -> None:
    set_quota(24.0)
    fleet = PoolFleet(("g5.xlarge",), workers_max=8, on_demand_max=8, vcpus=XLARGE)
    assert found("instance types", fleet, zones=1).result is CheckResult.OK
    quota = found("quota of on-demand GPU instances (G)", fleet)
    assert quota.result is CheckResult.FAILED
    assert "needs 32" in quota.seen
    few = PoolFleet(("g5.xlarge",), workers_max=6, on_demand_max=2, vcpus=XLARGE)
    assert found("quota of on-demand GPU instances (G)", few).result is CheckResult.OK
    assert "needs 16" in found("quota of spot GPU instances (G)", few).seen


def test_each_kind_of_instance_has_a_quota_of_its_own(set_quota: SetQuota) -> None:
    set_quota(24.0)
    fleet = PoolFleet(("g5.xlarge", "p4d.24xlarge"), workers_max=9, on_demand_max=1, vcpus={**XLARGE, "p": (96, 96)})
    assert found("quota of on-demand GPU instances (G)", fleet).result is CheckResult.OK
    assert found("quota of on-demand GPU instances (P)", fleet).result is CheckResult.FAILED
    assert found("quota of spot GPU instances (G)", fleet).result is CheckResult.FAILED
    assert found("quota of spot GPU instances (P)", fleet).result is CheckResult.WARNING, (
        "AWS has one for each generation"
    )


@pytest.mark.parametrize(
    ("quota", "result"),
    [(15.0, CheckResult.FAILED), (16.0, CheckResult.WARNING), (63.0, CheckResult.WARNING), (64.0, CheckResult.OK)],
)
def test_a_quota_for_the_smallest_of_mixed_types_is_a_warning(
    set_quota: SetQuota, quota: float, result: CheckResult
) -> None:
    set_quota(quota)
    mixed = fleet_of(Pool(count=Range(min=1, max=4)))
    assert mixed.vcpus == {"g": (4, 16)}
    assert found("quota of on-demand GPU instances (G)", mixed).result is result


def test_zones_that_aws_does_not_say_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: AwsAccount, zones: object) -> None:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "DescribeAvailabilityZones")

    monkeypatch.setattr(AwsAccount, "_zones", refused)
    seen = found("instance types", PoolFleet(("g5.xlarge",), 1, 1, XLARGE))
    assert (seen.result, "DescribeAvailabilityZones" in seen.advice) == (CheckResult.WARNING, True)


def test_an_instance_type_that_does_not_exist_here() -> None:
    finding = found("instance types", PoolFleet(("g99.huge", "g5.xlarge"), 1, 1, XLARGE))
    assert finding.result is CheckResult.FAILED
    assert "g99.huge" in finding.seen
    assert "g5.xlarge" not in finding.seen


def test_named_zones_without_the_type_are_named() -> None:
    fleet = PoolFleet(("g5.xlarge",), 1, 1, XLARGE)
    seen = found("instance types", fleet, zones=[f"{REGION}a", f"{REGION}z"])
    assert (seen.result, f"not in {REGION}z" in seen.seen) == (CheckResult.FAILED, True)
    assert found("instance types", replace(fleet, zones=[f"{REGION}a"]), zones=[f"{REGION}z"]).result is CheckResult.OK


def test_a_number_of_zones_means_the_account_s_first_ones() -> None:
    """g5.xlarge is in us-east-1a, b, c, d and f, as moto says."""
    fleet = PoolFleet(("g5.xlarge",), 1, 1, XLARGE)
    assert found("instance types", fleet, zones=4).result is CheckResult.OK
    seen = found("instance types", fleet, zones=5)
    assert (seen.result, f"not in {REGION}e" in seen.seen) == (CheckResult.FAILED, True)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    command(folder, "node", "echo v22.1.0")
    engine(folder, "28.2.2 on linux/arm64")
    monkeypatch.setenv("PATH", str(folder))


def test_the_command_ends_with_1_if_a_check_failed(tools: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert headgate("doctor", "before", "--region", REGION) == 1
    assert "cdk bootstrap" in capsys.readouterr().out
    bootstrapped("21")
    assert headgate("doctor", "before", "--region", REGION, "--json") == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["check"] for finding in findings} >= {"region", "credentials", "bootstrap", "permission to deploy"}


def test_the_region_of_aws_s_own_variable(
    tools: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """boto3 itself does not read AWS_REGION."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-1")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    headgate("doctor", "before", "--json")
    findings = {each["check"]: each["seen"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["region"] == "eu-west-3"


def test_the_fleet_of_the_file_is_checked(
    tools: None, tmp_path: Path, set_quota: SetQuota, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrapped("21")
    path = tmp_path / "headgate.yaml"
    path.write_text("region: us-east-1\npools: {chat: {instance_types: [g5.xlarge], count: {min: 1, max: 300}}}")
    assert headgate("doctor", "before", "--file", str(path), "--json") == 1
    findings = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["region"]["seen"] == "us-east-1"
    assert findings["quota of on-demand GPU instances (G)"]["result"] == "failed"
    assert "1200" in findings["quota of on-demand GPU instances (G)"]["seen"]
    set_quota(1200.0)
    assert headgate("doctor", "before", "--file", str(path)) == 0


def test_a_file_with_a_mistake_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text("front: ecs")
    assert headgate("doctor", "before", "--file", str(path)) == 2
    assert "'fargate' or 'lambda'" in capsys.readouterr().err


BLOCK = CapacityBlock(id="cr-0123456789abcdef0", zone="us-east-2b")
RESERVATION: dict[str, Any] = {
    "InstanceType": "p5.48xlarge",
    "AvailabilityZone": "us-east-2b",
    "State": "scheduled",
    "TotalInstanceCount": 2,
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"InstanceType": "p5e.48xlarge"}, "name its type"),
        ({"AvailabilityZone": "us-east-2a"}, "name its zone"),
        ({"State": "expired"}, "cannot be used any more"),
        ({"TotalInstanceCount": 1}, "set `count.max`"),
    ],
)
def test_a_capacity_block_is_compared_with_the_file(changed: dict[str, Any], words: str) -> None:
    fleet = PoolFleet(("p5.48xlarge",), workers_max=2, on_demand_max=2, vcpus={"p": (192, 192)}, block=BLOCK)
    found = judged_block(fleet, BLOCK, [{**RESERVATION, **changed}])
    assert (found.result, words in found.advice) == (CheckResult.FAILED if changed else CheckResult.OK, True)


def test_a_capacity_block_that_does_not_exist() -> None:
    fleet = PoolFleet(("p5.48xlarge",), workers_max=2, on_demand_max=2, vcpus={"p": (192, 192)}, block=BLOCK)
    assert judged_block(fleet, BLOCK, []).result is CheckResult.FAILED
