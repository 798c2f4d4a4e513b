"""Checks before `cdk deploy`: of an AWS account, of what headgate.yaml needs there, and of the machine that deploys.

Account: region, credentials, bootstrap, instance types and quotas. Each check reads, and changes nothing. A later check
is skipped if one that it needs failed. The model of a pool must fit: its files in S3 beside the memory of the GPUs and
the disk of the instance. With `traces: xray`, X-Ray takes spans only in an account with Transaction Search.

Machine: Node for the CDK, and Docker for the images that it builds. `CDK_DOCKER` names another command than docker, as
for the CDK.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config as ClientConfig
from botocore.exceptions import BotoCoreError, ClientError

from headgate.deployment.model import Deployment
from headgate.deployment.pool import USABLE, CapacityBlock, Pool
from headgate.doctor.finding import CheckResult, Finding, failed, ok, skipped, warning

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
_BOOTSTRAP_MIN = 6
"""The oldest version of the bootstrap stack that can deploy an app with assets."""
_QUALIFIER = "hnb659fds"
_DEPLOYING = ("deploy", "file-publishing", "image-publishing")
"""What the bootstrap has a role for, of `cdk deploy`."""
_EXECUTIONS_MIN = 200
"""Concurrent Lambda executions: the queue's consumer may use 100, and callers of headgate-invoke need some too."""
_LAMBDA_EXECUTIONS = ("lambda", "L-B99A9384")
_GPU_QUOTAS = {
    ("g", False): "L-DB2E81BA",
    ("g", True): "L-3819A6DF",
    ("p", False): "L-417A185B",
}
"""EC2's quotas in vCPUs, by the first letter of the instance type and by whether it is a spot instance."""
_CLIENT = ClientConfig(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})


@dataclass(frozen=True, slots=True)
class PoolFleet:
    """The workers of one pool: the most instances at once, and those of them that are not spot instances."""

    instance_types: Sequence[str]
    workers_max: int
    on_demand_max: int
    vcpus: Mapping[str, tuple[int, int]]
    """The vCPUs of the smallest and the largest instance type, by the types' first letter."""
    block: CapacityBlock | None = None
    zones: Sequence[str] = ()
    """The zones in which its instances start. Empty means the zones of the network."""


def fleet_of(pool: Pool) -> PoolFleet:
    """Return the fleet of a pool of headgate.yaml at its largest."""
    by_letter: dict[str, list[int]] = {}
    for name, kind in pool.types().items():
        by_letter.setdefault(name[:1], []).append(kind.vcpus)
    vcpus = {letter: (min(found), max(found)) for letter, found in by_letter.items()}
    return PoolFleet(pool.instance_types, pool.count.max, pool.on_demand_max, vcpus, pool.capacity_block, pool.zones)


class AwsAccount:
    """The account of the environment's credentials. `region` None: the one that AWS's variables and files name."""

    def __init__(self, region: str | None = None) -> None:
        self._session = boto3.Session(region_name=region)

    def client(self, service: Any) -> Any:
        return self._session.client(service, config=_CLIENT)

    def findings(self, fleets: Sequence[PoolFleet] = (), zones: int | Sequence[str] = 2) -> list[Finding]:
        """Return what the checks found, in the order in which a deployment needs it."""
        region = self._session.region_name
        if region is None:
            return [failed("region", "no region is set", "set AWS_REGION, or `region:` in headgate.yaml")]
        found = [ok("region", region), self._credentials()]
        if found[-1].result is CheckResult.FAILED:
            return [*found, skipped("bootstrap, quotas, instance types", "no usable credentials")]
        return [*found, self._bootstrap(), self._may_deploy(), self._executions(), *self._fleets(fleets, zones)]

    def _credentials(self) -> Finding:
        try:
            caller = self.client("sts").get_caller_identity()
        except (BotoCoreError, ClientError) as error:
            return failed("credentials", reason(error), "log in, for example with `aws sso login` or `aws configure`")
        return ok("credentials", f"{caller['Arn']} in account {caller['Account']}")

    def _bootstrap(self) -> Finding:
        advice = f"run `cdk bootstrap` once in this account and region ({self._session.region_name})"
        try:
            value = self.client("ssm").get_parameter(Name=BOOTSTRAP_PARAMETER)["Parameter"]["Value"]
        except (BotoCoreError, ClientError) as error:
            if "ParameterNotFound" in reason(error):
                return failed("bootstrap", "this account and region are not bootstrapped for the CDK", advice)
            return warning("bootstrap", reason(error), f"allow ssm:GetParameter on {BOOTSTRAP_PARAMETER}, or {advice}")
        if not value.isdigit() or int(value) < _BOOTSTRAP_MIN:
            return failed("bootstrap", f"version {value[:20]} is older than {_BOOTSTRAP_MIN}", advice)
        return ok("bootstrap", f"version {value}")

    def _may_deploy(self) -> Finding:
        """Assume the bootstrap's roles: `cdk deploy` publishes files and images and creates the stack through them."""
        try:
            sts = self.client("sts")
            account, region = sts.get_caller_identity()["Account"], str(self._session.region_name)
            place = f"arn:{self._session.get_partition_for_region(region)}:iam::{account}:role"
            for work in _DEPLOYING:
                role = f"{place}/cdk-{_QUALIFIER}-{work}-role-{account}-{region}"
                sts.assume_role(RoleArn=role, RoleSessionName="headgate-doctor", DurationSeconds=900)
        except (BotoCoreError, ClientError) as error:
            return failed("permission to deploy", reason(error), "allow this principal sts:AssumeRole on cdk-* roles")
        return ok("permission to deploy", f"may assume the bootstrap's roles for {', '.join(_DEPLOYING)}")

    def _executions(self) -> Finding:
        quota = self._quota(*_LAMBDA_EXECUTIONS)
        if isinstance(quota, Finding):
            return quota
        seen = f"{quota:,.0f} concurrent executions"
        if quota < _EXECUTIONS_MIN:
            advice = f"ask for at least {_EXECUTIONS_MIN} (Service Quotas, Lambda, {_LAMBDA_EXECUTIONS[1]})"
            return failed("quota of Lambda", seen, advice)
        return ok("quota of Lambda", seen)

    def _fleets(self, fleets: Sequence[PoolFleet], zones: int | Sequence[str]) -> list[Finding]:
        return [finding for fleet in fleets for finding in self._fleet(fleet, zones)]

    def _fleet(self, fleet: PoolFleet, zones: int | Sequence[str]) -> list[Finding]:
        """A capacity block needs no quota, and is in one zone."""
        if fleet.block is not None:
            return [self._block_finding(fleet, fleet.block)]
        return [self._offers_finding(fleet, fleet.zones or zones), *self._gpu_quotas(fleet)]

    def _zones(self, zones: int | Sequence[str]) -> Sequence[str]:
        """Return the names of zones. A number means the account's first ones, as for Fn::GetAZs. Raises BotoCoreError,
        ClientError."""
        if not isinstance(zones, int):
            return zones
        kinds = [{"Name": "zone-type", "Values": ["availability-zone"]}]
        found = self.client("ec2").describe_availability_zones(Filters=kinds)["AvailabilityZones"]
        return sorted(zone["ZoneName"] for zone in found)[:zones]

    def _block_finding(self, fleet: PoolFleet, block: CapacityBlock) -> Finding:
        try:
            reservations = self.client("ec2").describe_capacity_reservations(CapacityReservationIds=[block.id])
        except (BotoCoreError, ClientError) as error:
            advice = "check the id in headgate.yaml, and allow ec2:DescribeCapacityReservations"
            return failed("capacity block", reason(error), advice)
        return judged_block(fleet, block, reservations["CapacityReservations"])

    def _offers_finding(self, fleet: PoolFleet, zones: int | Sequence[str]) -> Finding:
        """Return in which zones the instance types are offered. `zones`: those in which it starts, or how many."""
        wanted = sorted(fleet.instance_types)
        try:
            ec2 = self.client("ec2")
            pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
                LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": wanted}]
            )
            offers = [offer for page in pages for offer in page["InstanceTypeOfferings"]]
            used = self._zones(zones)
        except (BotoCoreError, ClientError) as error:
            advice = "allow ec2:DescribeInstanceTypeOfferings and ec2:DescribeAvailabilityZones"
            return warning("instance types", reason(error), advice)
        places = {offer.get("Location", "") for offer in offers}
        missing = [each for each in wanted if each not in {offer.get("InstanceType") for offer in offers}]
        if missing:
            return failed("instance types", f"not in this region: {', '.join(missing)}", "name others in headgate.yaml")
        seen = f"{', '.join(wanted)}: in {', '.join(sorted(places))}"
        without = sorted(set(used) - places)
        if without:
            advice = "name other zones in `zones`, or those with instances in the pool's `zones`"
            return failed("instance types", f"{seen}; not in {', '.join(without)}", advice)
        return ok("instance types", seen)

    def _gpu_quotas(self, fleet: PoolFleet) -> list[Finding]:
        """Each kind of instance must have room for the whole fleet, because any of them may be all that AWS has."""
        counts = {False: fleet.on_demand_max, True: fleet.workers_max - fleet.on_demand_max}
        return [
            self._gpu_quota(letter, count * least, count * most, spot)
            for letter, (least, most) in sorted(fleet.vcpus.items())
            for spot, count in counts.items()
            if count
        ]

    def _gpu_quota(self, letter: str, least: int, needed: int, spot: bool) -> Finding:
        """`least`, `needed`: the vCPUs of the whole fleet with the smallest and with the largest of the types."""
        name = f"quota of {'spot' if spot else 'on-demand'} GPU instances ({letter.upper()})"
        code = _GPU_QUOTAS.get((letter, spot))
        if code is None:
            advice = f"see that Service Quotas (EC2, the spot requests of this type) allows {needed} vCPUs"
            return warning(name, "it is not checked: AWS has one for each generation of this type", advice)
        quota = self._quota("ec2", code, name)
        if isinstance(quota, Finding):
            return quota
        advice = f"ask for {needed} vCPUs (Service Quotas, EC2, {code}): this may take days"
        if quota < least:
            return failed(name, f"{quota:,.0f} vCPUs, and the largest fleet needs {needed}", advice)
        if quota < needed:
            seen = f"{quota:,.0f} vCPUs: enough for the smallest of the instance types, and the largest needs {needed}"
            return warning(name, seen, advice)
        return ok(name, f"{quota:,.0f} vCPUs; the largest fleet needs {needed}")

    def _quota(self, service: str, code: str, name: str = "quota of Lambda") -> float | Finding:
        """Return the account's quota, or AWS's default for it where the account has none of its own."""
        quotas = self.client("service-quotas")
        try:
            try:
                quota = quotas.get_service_quota(ServiceCode=service, QuotaCode=code)
            except quotas.exceptions.NoSuchResourceException:
                quota = quotas.get_aws_default_service_quota(ServiceCode=service, QuotaCode=code)
        except (BotoCoreError, ClientError) as error:
            return warning(name, reason(error), f"look it up in Service Quotas: {service}, {code}")
        return float(quota["Quota"]["Value"])


def judged_block(fleet: PoolFleet, block: CapacityBlock, found: Sequence[Mapping[str, Any]]) -> Finding:
    """Compare a reservation, as EC2 describes it, with the pool that uses it."""
    if not found:
        return failed("capacity block", f"{block.id} does not exist", "buy it, or correct the id in headgate.yaml")
    (reservation,) = found
    ends = reservation.get("EndDate")
    seen = (
        f"{block.id}: {reservation['TotalInstanceCount']} x {reservation['InstanceType']} in "
        f"{reservation['AvailabilityZone']}, {reservation['State']}, until {ends or 'it is cancelled'}"
    )
    wrong = [
        (reservation["InstanceType"] not in fleet.instance_types, "name its type in `instance_types`"),
        (reservation["AvailabilityZone"] != block.zone, "name its zone in `capacity_block`, and in `zones`"),
        (reservation["State"] not in ("active", "scheduled", "payment-pending"), "it cannot be used any more"),
        (reservation["TotalInstanceCount"] < fleet.workers_max, "set `count.max` to what it has"),
    ]
    advice = "; ".join(text for is_wrong, text in wrong if is_wrong)
    return failed("capacity block", seen, advice) if advice else ok("capacity block", seen)


def reason(error: BotoCoreError | ClientError) -> str:
    """Return what AWS or the SDK says, in one line."""
    if isinstance(error, ClientError):
        said = error.response.get("Error", {})
        return f"{said.get('Code', 'error')}: {said.get('Message', '')}"[:300]
    return " ".join(str(error).split())[:300]


_GB = 1e9
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def check_weights(s3: Any, name: str, pool: Pool) -> Finding:
    """Return what the files of the pool's model say. A pool without a model must not be given."""
    check = f"model of {name}"
    bucket, _, prefix = str(pool.model).removeprefix("s3://").partition("/")
    below = f"{prefix.rstrip('/')}/"
    try:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=below)
        files = {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", [])}
    except (BotoCoreError, ClientError) as error:
        return warning(check, f"{pool.model}: {reason(error)}", "allow s3:ListBucket, or check the address yourself")
    weights_gb = sum(size for key, size in files.items() if key.endswith(_WEIGHTS)) / _GB
    if not weights_gb:
        return failed(check, f"{pool.model} has no weights in its {len(files)} files", "copy the model there first")
    return _fits(check, pool, weights_gb, sum(files.values()) / _GB)


def _fits(check: str, pool: Pool, weights_gb: float, all_gb: float) -> Finding:
    seen = f"{weights_gb:.1f} GB of weights"
    for name, kind in pool.types().items():
        usable_gb = USABLE * kind.gpu_gb * pool.tensor_parallel
        if weights_gb > usable_gb:
            advice = "raise tensor_parallel, or name instance types with more GPU memory"
            return failed(check, f"{seen}, and {pool.tensor_parallel} GPU(s) of {name} have {usable_gb:.0f}", advice)
        if all_gb > kind.disk_gb:
            advice = "name instance types with a larger disk"
            return failed(check, f"{all_gb:.0f} GB of files, and the disk of {name} has {kind.disk_gb}", advice)
    return ok(check, f"{seen} fit into {pool.tensor_parallel} GPU(s) of {', '.join(pool.instance_types)}")


_CHECK = "traces"
_ADVICE = "enable Transaction Search (docs/deployment.md, Traces), or set `traces: none`"


def check_traces(xray: Any) -> Finding:
    """Return whether X-Ray takes spans. `xray`: a client of boto3. Nothing is changed."""
    try:
        found = xray.get_trace_segment_destination()
    except (BotoCoreError, ClientError) as error:
        return warning(_CHECK, reason(error), "allow xray:GetTraceSegmentDestination, or look in CloudWatch's console")
    if found["Destination"] != "CloudWatchLogs":
        return failed(_CHECK, f"spans would be lost: X-Ray keeps traces in {found['Destination']}", _ADVICE)
    if found["Status"] != "ACTIVE":
        return warning(_CHECK, f"Transaction Search is {found['Status']}", "repeat this check in some minutes")
    return ok(_CHECK, "Transaction Search is active")


_NODE_MIN = 20
_COMMAND_S = 20.0
_ARM, _X86 = "linux/arm64", "linux/amd64"


def check_node() -> Finding:
    """Check that Node is new enough for the CDK."""
    found = _output("node", "--version")
    if found is None:
        return failed("Node", "there is no command node that answers", f"install Node {_NODE_MIN} or later, with npm")
    major = found.removeprefix("v").partition(".")[0]
    if not major.isdigit() or int(major) < _NODE_MIN:
        return failed("Node", found, f"install Node {_NODE_MIN} or later")
    return ok("Node", found)


def check_docker(deployment: Deployment) -> Finding:
    """Check that Docker builds for the platform of each image that the deployment needs."""
    images = _images(deployment)
    if not images:
        return skipped("Docker", "nothing is built: the front is a function, and each pool names its image")
    docker = os.environ.get("CDK_DOCKER", "docker")
    server = _output(docker, "version", "--format", "{{.Server.Version}} on {{.Server.Os}}/{{.Server.Arch}}")
    if server is None:
        advice = "start Docker; without it, use front: lambda, and name an image in each pool with a model"
        return failed("Docker", f"no engine answers {docker}, which builds {' and '.join(images)}", advice)
    can_build = f"{server} {_output(docker, 'buildx', 'inspect') or ''}"
    missing = sorted({each for each in images.values() if each not in can_build})
    if missing:
        advice = "install QEMU's emulation: docker run --privileged --rm tonistiigi/binfmt --install all"
        return failed("Docker", f"{server} cannot build for {', '.join(missing)}", advice)
    return ok("Docker", f"{server} builds {', '.join(f'{name} for {kind}' for name, kind in images.items())}")


def _images(deployment: Deployment) -> Mapping[str, str]:
    """Return the platforms of the images that `cdk deploy` builds (infra/), by image."""
    pools = deployment.pools.values()
    built = {
        "the front": (deployment.front == "fargate", _ARM),
        "workers": (any(pool.model is not None and pool.image is None for pool in pools), _X86),
        "workers before servers": (any(pool.servers for pool in pools), _ARM),
    }
    return {image: platform for image, (is_built, platform) in built.items() if is_built}


def _output(command: str, *arguments: str) -> str | None:
    """Return what the command prints; None if it is missing, fails or does not answer."""
    path = shutil.which(command)
    if path is None:
        return None
    try:
        ended = subprocess.run(  # noqa: S603 - the command is one of this file
            [path, *arguments], capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
