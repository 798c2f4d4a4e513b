"""headgate.yaml as a model, and its reading. docs/deployment.md explains each field; a test compares the two.

A field is here only if something reads it: the CDK app (infra/), `headgate doctor` or `headgate local --file`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, to_jsonable_python

from dispatcher.model.errors import ConfigurationError as ConfigurationError
from dispatcher.policies.bounds import Bounds, Pattern
from dispatcher.policies.service import CACHED_FRACTION
from dispatcher.settings.config import LogStripes
from dispatcher.settings.yaml_file import read_document
from headgate.deployment import instances
from headgate.deployment.images import ecr_image, partition_of
from headgate.deployment.pool import LAMBDA_S, GateSections, Pool, Range, ZoneName, is_own_machine

_PoolName = Annotated[
    str, Pattern(r"^[a-z][a-z0-9-]{0,15}$", "chat, with at most 16 small letters, digits and hyphens")
]
NAME = r"[a-z][a-z0-9-]{0,31}"
_CERTIFICATE = r"arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/[A-Za-z0-9-]+"
_PRINCIPAL = r"arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:[A-Za-z0-9_+=,.@/-]+"
_StackName = Annotated[str, Pattern(f"^{NAME}$", "headgate-staging, with at most 32 small letters, digits and hyphens")]
_CertificateName = Annotated[str, Pattern(f"^{_CERTIFICATE}$", "arn:aws:acm:us-east-1:123456789012:certificate/ID")]
_PrincipalName = Annotated[str, Pattern(f"^{_PRINCIPAL}$", "arn:aws:iam::123456789012:role/NAME")]
_DomainName = Annotated[str, Bounds(0, 253), Pattern(r"^([a-z0-9-]{1,63}\.)+[a-z]{2,63}$", "llm.example.com")]
_MailAddress = Annotated[str, Bounds(0, 254), Pattern(r"^[^@\s]+@[^@\s]+\.[^@\s]+$", "operators@example.com")]
_DEFAULT_POOL = "default"
_POOLS_MAX = 8
"""A front has a gate process for each pool, with a port of its own."""
_VARIABLES_BYTES_MAX = 2_700
"""The most bytes of the variables that headgate.yaml sets. Lambda allows 4,096 bytes for all variables of a function;
the others have names of resources."""
_SERVICE_CHARS = 150
"""The length of the name of a cluster and its service, at most."""
_ZoneNames = Annotated[tuple[ZoneName, ...], Field(min_length=2, max_length=6, strict=False)]
_Zones = Annotated[
    Annotated[int, Field(ge=2, le=6), Tag("count")] | Annotated[_ZoneNames, Tag("names")],
    Discriminator(lambda value: "names" if isinstance(value, tuple | list) else "count"),
]


class Deployment(GateSections):
    """One installation of headgate in one account and region."""

    name: _StackName = "headgate"
    """The stack's name, with which all physical names begin."""
    region: Annotated[str, Pattern(r"^[a-z]{2}(-[a-z]+)+-[0-9]$", "us-east-1")] | None = None
    """None: the region of AWS's own variables and files."""
    zones: _Zones = 2
    """How many, or which."""
    check_zones: bool = True
    """Whether instance types and zones are compared with the table of AWS's offers (deployment/instances.py)."""
    nat_gateways: Annotated[int, Field(ge=1, le=6)] = 1
    front: Literal["fargate", "lambda"] = "fargate"
    front_count: Range = Range(min=2, max=8)
    """Tasks of a front on Fargate."""
    certificate: _CertificateName | None = None
    domain: _DomainName | None = None
    allowed_invokers: Annotated[
        tuple[_PrincipalName, ...],
        Field(strict=False),
    ] = ()
    deadline_s: Annotated[int, Field(ge=1, le=LAMBDA_S)] = 300
    retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731] = 30
    cached_fraction: Annotated[float, Field(ge=0, le=1)] = CACHED_FRACTION
    """The price of an input token from an engine's prefix cache, relative to a computed one: for gate and engines."""
    log_stripes: LogStripes = 1
    """The partitions of the table over which each pool's log is striped. It cannot be taken back."""
    alarm_address: _MailAddress | None = None
    traces: Literal["none", "xray"] = "none"
    """Where spans go. X-Ray takes them only in an account with Transaction Search."""
    traces_ratio: Annotated[float, Field(gt=0, le=1)] = 0.05
    """The part of the requests that is recorded, if `traces` is not none."""
    pools: dict[_PoolName, Pool] = Field(
        default_factory=lambda: {_DEFAULT_POOL: Pool()}, min_length=1, max_length=_POOLS_MAX
    )

    @field_validator("pools")
    @classmethod
    def _have_own_models(cls, pools: dict[str, Pool]) -> dict[str, Pool]:
        """A request names a model, and the model names the pool."""
        owners: dict[str, str] = {}
        for name, pool in pools.items():
            if not pool.model_name and len(pools) > 1:
                raise PydanticCustomError(
                    "no_model",
                    "{name} has neither a model nor servers: a request finds one of several pools by its model",
                    {"name": name},
                )
            first = owners.setdefault(pool.model_name, name)
            if first != name:
                raise PydanticCustomError(
                    "model_twice",
                    "{second} has the model {model}, which {first} has too; a model belongs to one pool",
                    {"second": name, "first": first, "model": pool.model_name},
                )
        return pools

    @model_validator(mode="after")
    def _agrees(self, info: ValidationInfo) -> Deployment:
        if (self.certificate is None) != (self.domain is None):
            raise PydanticCustomError("https", "domain and certificate belong together: give both or none")
        region = self.region or (info.context or {}).get("region")
        if self.certificate is not None and region not in (None, self.certificate.split(":")[3]):
            message = "the certificate is in {place}; a load balancer needs one of its own region, {region}"
            found = {"place": self.certificate.split(":")[3], "region": region}
            raise PydanticCustomError("https", message, found)
        self._check_images(region)
        if self.certificate is not None and self.front == "lambda":
            message = "domain and certificate are for front: fargate; API Gateway has HTTPS at an address of its own"
            raise PydanticCustomError("https", message)
        if self.nat_gateways > self.zone_count:
            zones = {"zones": self.zone_count}
            raise PydanticCustomError("nat", "nat_gateways should be at most zones ({zones})", zones)
        self._check_zones()
        self._check_offers(region)
        if (size := self._variables_bytes()) > _VARIABLES_BYTES_MAX:
            raise PydanticCustomError(
                "variables",
                "pools, tiers, throttling and slo_classes take {size} bytes as variables, and a Lambda function has "
                "room for {most}: give what all pools share once, for the stack, or use fewer pools",
                {"size": size, "most": _VARIABLES_BYTES_MAX},
            )
        if self.front_count.min < 1:
            raise PydanticCustomError("front_count", "front_count.min should be at least 1, better 2")
        return self

    @property
    def zone_count(self) -> int:
        return self.zones if isinstance(self.zones, int) else len(self.zones)

    def own_machine_servers(self) -> list[str]:
        """Return the addresses of servers that only `headgate local` can reach."""
        return [each.url for pool in self.pools.values() for each in pool.servers if is_own_machine(each.url)]

    def _check_zones(self) -> None:
        names = () if isinstance(self.zones, int) else self.zones
        for zone in names:
            if self.region is not None and not zone.startswith(self.region):
                raise PydanticCustomError(
                    "zones", "{zone} is not in the region {region}", {"zone": zone, "region": self.region}
                )
        if len(set(names)) < len(names):
            raise PydanticCustomError("zones", "zones should name each zone once")
        if len(regions := sorted({zone[:-1] for zone in names})) > 1:
            raise PydanticCustomError(
                "zones", "zones are in {regions}: a network is in one region", {"regions": " and ".join(regions)}
            )
        for name, pool in self.pools.items():
            if len(set(pool.own_zones)) < len(pool.own_zones):
                raise PydanticCustomError("pool_zone", "pools.{name}.zones should name each zone once", {"name": name})
            for zone in pool.own_zones:
                if zone not in names:
                    raise PydanticCustomError(
                        "pool_zone",
                        "pools.{name} is in {zone}: name the zones of the network, with this one, such as "
                        "zones: [{zone}, …]",
                        {"name": name, "zone": zone},
                    )

    def _check_images(self, region: str | None) -> None:
        """Refuse an image in ECR that no role of the stack can pull: credentials end at the partition."""
        for name, pool in self.pools.items() if region is not None else ():
            image = None if pool.image is None else ecr_image(pool.image)
            if image is not None and partition_of(image.region) != partition_of(str(region)):
                raise PydanticCustomError(
                    "image_partition",
                    "pools.{name}: the image is in {place}, whose registry takes no credentials of {region}: copy it "
                    "to a registry of {region}",
                    {"name": name, "place": image.region, "region": region},
                )

    def _check_offers(self, region: str | None) -> None:
        """Compare each pool's instance types and zones with the dated table."""
        pools = self.pools.items() if self.check_zones and region is not None else ()
        for name, pool in pools:
            found = pool.model and instances.problem(str(region), pool.instance_types, pool.own_zones or self.zones)
            if found:
                raise PydanticCustomError(
                    "offers",
                    "pools.{name}: {what}{advice}, as of {day}; if AWS offers more by now, set check_zones: false",
                    {"name": name, "what": found.what, "advice": _where(found.zones), "day": instances.as_of()},
                )

    def _variables_bytes(self) -> int:
        pools = {name: {**self.pool_settings(name), "ecs_service": _SERVICE_CHARS * "x"} for name in self.pools}
        return len(json.dumps(pools)) + sum(map(len, self.environment().values()))

    @property
    def longest_s(self) -> int:
        """The longest deadline of any pool."""
        return max(pool.deadline_s or self.deadline_s for pool in self.pools.values())

    def environment(self) -> dict[str, str]:
        """Return the variables of the gate's processes that the file sets, without HEADGATE_POOLS."""
        given = {f"HEADGATE_{name.upper()}": json.dumps(value) for name, value in _sections(self).items()}
        if self.cached_fraction != CACHED_FRACTION:
            given["HEADGATE_CACHED_FRACTION"] = str(self.cached_fraction)
        if self.log_stripes > 1:
            given["HEADGATE_LOG_STRIPES"] = str(self.log_stripes)
        return {"HEADGATE_DEADLINE_S": str(self.deadline_s), **given}

    def pool_settings(self, name: str) -> dict[str, Any]:
        """Return what HEADGATE_POOLS says of a pool (dispatcher/settings/config.py), without the ECS service."""
        pool = self.pools[name]
        given = _sections(pool) | ({} if pool.deadline_s is None else {"deadline_s": pool.deadline_s})
        given |= {} if pool.shards == 1 else {"shards": pool.shards}
        if pool.model is None:
            return {"models": [pool.model_name], **given} if pool.servers else given
        count = pool.count
        scaling = {"workers_min": count.min, "workers_max": count.max, "scale_to_zero": count.min == 0}
        adapters = {"adapters": list(pool.adapters)} if pool.adapters else {}
        return {"models": [pool.model_name], **adapters, **scaling, **given}


def _where(zones: Sequence[str]) -> str:
    return f"; name such zones in zones and pools: {', '.join(zones)}" if zones else ""


def _sections(owner: GateSections) -> dict[str, Any]:
    """Return the sections that are given, as JSON values."""
    sections = {name: getattr(owner, name) for name in GateSections.model_fields}
    return {name: to_jsonable_python(section) for name, section in sections.items() if section is not None}


_NAME_CHARS_MAX = 40


def load(path: Path, name: str | None = None, region: str | None = None) -> Deployment:
    """Read and validate the file. `name` takes the place of the name in the file. `region`: of the environment, for a
    file that names none. Raises ConfigurationError."""
    deployment = read_document(path).parse(Deployment, {"region": region})
    return deployment if name is None else _rename(deployment, name)


def _rename(deployment: Deployment, name: str) -> Deployment:
    """Return the deployment with another name. Raises ConfigurationError."""
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(
            f"the stack cannot have the name {name[:_NAME_CHARS_MAX]!r}: use at most 32 lower-case letters, digits and "
            "hyphens, with a letter first"
        )
    return deployment.model_copy(update={"name": name})
