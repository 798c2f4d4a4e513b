"""headgate.yaml as a model. docs/deployment.md explains each field; a test compares the two.

A field is here only if something reads it: the CDK app (infra/) or `headgate doctor`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.sections import SloClassesSection, ThrottlingSection, TiersSection
from headgate.deployment.instances import INSTANCE_TYPES, InstanceType, near

PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,15}$")]
NAME = r"[a-z][a-z0-9-]{0,31}"
CERTIFICATE = r"arn:aws[a-z-]*:acm:[a-z0-9-]+:\d{12}:certificate/[A-Za-z0-9-]+"
PRINCIPAL = r"arn:aws[a-z-]*:(iam|sts)::\d{12}:[\w+=,.@/-]+"
MODEL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+/?"
IMAGE = r"[A-Za-z0-9./_:-]+@sha256:[0-9a-f]{64}"
LAMBDA_S = 900
"""The longest time of a Lambda function, and so of an invocation."""
DEFAULT_POOL = "default"
POOLS_MAX = 8
"""A front has a gate process for each pool, with a port of its own."""
VARIABLES_BYTES_MAX = 2_700
"""Of the 4,096 that Lambda allows for all variables of a function; the others have names of resources."""
SERVICE_CHARS = 120
"""The length of the name of a cluster and its service, at most."""
USABLE = 0.9
"""The part of a GPU's memory that an engine uses; weights must leave room for its KV cache."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Range(Section):
    """The least and the most of something."""

    min: Annotated[int, Field(ge=0, le=10_000)]
    max: Annotated[int, Field(ge=1, le=10_000)]

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if self.min > self.max:
            raise PydanticCustomError("range", "min ({min}) should not be above max", {"min": self.min})
        return self


class GateSections(Section):
    """What a pool's gate decides by. In a pool, None: as the stack has it."""

    tiers: TiersSection | None = None
    throttling: ThrottlingSection | None = None
    slo_classes: SloClassesSection | None = None
    """As in the file of tenants (headgate/tenants_file.py)."""


class Pool(GateSections):
    """Workers that serve one model, and the GPU instances on which they run. A pool's tenants wait in queues of its
    own, and its log decides their order."""

    model: Annotated[str, Field(pattern=f"^{MODEL}$")] | None = None
    """Where the model's files are. None: the stack starts no worker."""
    image: Annotated[str, Field(pattern=f"^{IMAGE}$")] | None = None
    """The worker's image, with its digest. None: it is built from gpu_worker/Dockerfile."""
    instance_types: Annotated[tuple[str, ...], Field(min_length=1, max_length=20, strict=False)] = ("g6e.xlarge",)
    on_demand_base: Annotated[int, Field(ge=0, le=10_000)] = 1
    """So many instances are never spot instances."""
    spot_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """The part of all further instances that are spot instances."""
    count: Range = Range(min=1, max=4)
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] = 1
    """The GPUs that one model uses."""
    slots: Annotated[int, Field(ge=1, le=100_000)] = 320
    batch: Annotated[int, Field(ge=1, le=100_000)] = 256
    engine_arguments: Annotated[tuple[str, ...], Field(max_length=100, strict=False)] = ()
    """Further arguments of vLLM's server."""
    drain_s: Annotated[int, Field(ge=1, le=LAMBDA_S)] = 300
    """A worker that ends lets its requests run for so long."""
    weights_gb: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """The size of the model's weights. If it is given, it must fit into the GPUs."""
    deadline_s: Annotated[int, Field(ge=1, le=LAMBDA_S)] | None = None
    """The longest time of an invocation. None: that of the stack."""

    @field_validator("instance_types")
    @classmethod
    def _are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in INSTANCE_TYPES:
                raise PydanticCustomError(
                    "instance_type",
                    "{name} is no GPU instance type that headgate knows; do you mean {near}?",
                    {"name": name[:40], "near": near(name[:40])},
                )
        return names

    @model_validator(mode="after")
    def _fit(self) -> Pool:
        for name, kind in self.types().items():
            if kind.gpus < self.tensor_parallel:
                raise PydanticCustomError(
                    "gpus",
                    "tensor_parallel is {wanted}, but {name} has {gpus} GPU(s)",
                    {"wanted": self.tensor_parallel, "name": name, "gpus": kind.gpus},
                )
            usable_gb = USABLE * kind.gpu_gb * self.tensor_parallel
            if self.weights_gb is not None and self.weights_gb > usable_gb:
                raise PydanticCustomError(
                    "weights",
                    "weights of {weights} GB do not fit into {gpus} GPU(s) of {name}: {usable} GB are usable",
                    {"weights": f"{self.weights_gb:g}", "gpus": self.tensor_parallel, "name": name,
                     "usable": f"{usable_gb:.0f}"},
                )  # fmt: skip
        return self

    @property
    def model_name(self) -> str:
        """The name by which tenants ask for the model: the last part of its address."""
        return (self.model or "").rstrip("/").rpartition("/")[2]

    def types(self) -> dict[str, InstanceType]:
        return {name: INSTANCE_TYPES[name] for name in self.instance_types}

    @property
    def on_demand_max(self) -> int:
        """The most instances at once that are not spot instances."""
        above = max(0, self.count.max - self.on_demand_base)
        return self.count.max - above * self.spot_percent // 100


class Deployment(GateSections):
    """One installation of headgate in one account and region."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")] = "headgate"
    """The stack's name, with which all physical names begin."""
    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")] | None = None
    """None: the region of AWS's own variables and files."""
    zones: Annotated[int, Field(ge=2, le=6)] = 2
    nat_gateways: Annotated[int, Field(ge=1, le=6)] = 1
    front: Literal["fargate", "lambda"] = "fargate"
    front_count: Range = Range(min=2, max=8)
    """Tasks of a front on Fargate."""
    certificate: Annotated[str, Field(pattern=f"^{CERTIFICATE}$")] | None = None
    domain: Annotated[str, Field(pattern=r"^([a-z0-9-]{1,63}\.)+[a-z]{2,63}$", max_length=253)] | None = None
    allowed_invokers: Annotated[tuple[Annotated[str, Field(pattern=f"^{PRINCIPAL}$")], ...], Field(strict=False)] = ()
    deadline_s: Annotated[int, Field(ge=1, le=LAMBDA_S)] = 300
    retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731] = 30
    alarm_address: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", max_length=254)] | None = None
    traces: Literal["none", "xray"] = "none"
    """Where spans go. X-Ray takes them only in an account with Transaction Search."""
    traces_ratio: Annotated[float, Field(gt=0, le=1)] = 0.05
    """The part of the requests that is recorded, if `traces` is not none."""
    pools: Annotated[dict[PoolName, Pool], Field(min_length=1, max_length=POOLS_MAX)] = {DEFAULT_POOL: Pool()}

    @field_validator("pools")
    @classmethod
    def _have_own_models(cls, pools: dict[str, Pool]) -> dict[str, Pool]:
        """A request names a model, and the model names the pool."""
        owners: dict[str, str] = {}
        for name, pool in pools.items():
            first = owners.setdefault(pool.model_name, name) if pool.model else name
            if first != name:
                raise PydanticCustomError(
                    "model_twice",
                    "{second} has the model {model}, which {first} has too; a model belongs to one pool",
                    {"second": name, "first": first, "model": pool.model_name},
                )
        return pools

    @model_validator(mode="after")
    def _agrees(self) -> Deployment:
        if (self.certificate is None) != (self.domain is None):
            raise PydanticCustomError("https", "domain and certificate belong together: give both or none")
        if self.certificate is not None and self.front == "lambda":
            message = "domain and certificate are for front: fargate; API Gateway has HTTPS at an address of its own"
            raise PydanticCustomError("https", message)
        if self.nat_gateways > self.zones:
            raise PydanticCustomError("nat", "nat_gateways should be at most zones ({zones})", {"zones": self.zones})
        if (size := self._variables_bytes()) > VARIABLES_BYTES_MAX:
            raise PydanticCustomError(
                "variables",
                "pools, tiers, throttling and slo_classes take {size} bytes as variables, and a Lambda function has "
                "room for {most}: give what all pools share once, for the stack, or use fewer pools",
                {"size": size, "most": VARIABLES_BYTES_MAX},
            )
        if self.front_count.min < 1:
            raise PydanticCustomError("front_count", "front_count.min should be at least 1, better 2")
        return self

    def _variables_bytes(self) -> int:
        pools = {name: {**self.pool_settings(name), "ecs_service": SERVICE_CHARS * "x"} for name in self.pools}
        return len(json.dumps(pools)) + sum(map(len, self.environment().values()))

    @property
    def longest_s(self) -> int:
        """The longest deadline of any pool."""
        return max(pool.deadline_s or self.deadline_s for pool in self.pools.values())

    def environment(self) -> dict[str, str]:
        """Return the variables of the gate's processes that the file sets, without HEADGATE_POOLS."""
        given = {f"HEADGATE_{name.upper()}": json.dumps(value) for name, value in _sections(self).items()}
        return {"HEADGATE_DEADLINE_S": str(self.deadline_s), **given}

    def pool_settings(self, name: str) -> dict[str, Any]:
        """Return what HEADGATE_POOLS says of a pool (dispatcher/config.py), without the ECS service."""
        pool = self.pools[name]
        given = _sections(pool) | ({} if pool.deadline_s is None else {"deadline_s": pool.deadline_s})
        if pool.model is None:
            return given
        count = pool.count
        scaling = {"workers_min": count.min, "workers_max": count.max, "scale_to_zero": count.min == 0}
        return {"models": [pool.model_name], **scaling, **given}


def _sections(owner: GateSections) -> dict[str, Any]:
    """Return the sections that are given, as JSON values."""
    sections = {name: getattr(owner, name) for name in GateSections.model_fields}
    return {name: section.model_dump(mode="json") for name, section in sections.items() if section is not None}
