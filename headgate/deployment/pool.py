"""A pool of headgate.yaml: the workers of one model, their settings, and the instances on which they run.

A pool may have servers that run already in place of instances. On AWS a worker on Fargate reaches them in the stack's
VPC; `headgate local --file` also serves one of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Annotated, Literal, LiteralString

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError, to_json

from dispatcher.model.fleet import ADAPTERS_MAX, BATCH_MAX, SLOTS_MAX
from dispatcher.policies.bounds import Pattern
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.settings.sections import SloClassesSection
from dispatcher.settings.strict import Strict
from dispatcher.shard.settings import TierFloors
from gpu_worker.engines.vllm.adapters import NAME as ADAPTER_NAME
from gpu_worker.engines.vllm.adapters import OPTION as ADAPTERS
from gpu_worker.engines.vllm.arguments import REFUSED
from gpu_worker.policies.fairness.tiered import make_queue
from gpu_worker.service.tiers_file import WorkerTiers
from headgate.deployment.images import check_image
from headgate.deployment.instances import INSTANCE_TYPES, InstanceType, near

_HOST_CHARS_MAX = 253
_ADDRESS = re.compile(r"https?://(?P<host>[A-Za-z0-9.-]+)(:(?P<port>[0-9]{1,5}))?(?P<path>(/[A-Za-z0-9._~-]*)*)")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBERS = re.compile(r"[0-9.]+")


def _check_address(address: str) -> str:
    """Return the address. Raises PydanticCustomError with a sentence about what is wrong with it."""
    if problem := _problem(address):
        raise PydanticCustomError("address", "{problem}", {"problem": problem})
    return address


def _problem(address: str) -> str | None:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return (
            "should look like http://vllm.internal:8000/v1: http or https, a host's name or IPv4 address, its port, "
            "and the path before /chat/completions, without a user, a query or spaces"
        )
    if found["port"] is not None and not 1 <= int(found["port"]) <= 65_535:
        return "should have a port of 1 to 65535"
    if {".", ".."} & set(found["path"].split("/")):
        return "should have a path without . and .. as its parts"
    return _host_problem(found["host"])


def _host_problem(host: str) -> str | None:
    labels = host.removesuffix(".").split(".")
    if len(host) > _HOST_CHARS_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        return "should have a host's name of letters, digits and hyphens between its dots"
    if _NUMBERS.fullmatch(host):
        try:
            address = IPv4Address(host)
        except ValueError:
            return "should have an IPv4 address of four numbers from 0 to 255, or a host's name"
        if address.is_unspecified or address.is_link_local or address.is_multicast:
            return "should be the address of a server: this one belongs to no other machine"
    return None


def is_own_machine(address: str) -> bool:
    """Return whether the address names the machine that asks, which on AWS is the worker's own task."""
    found = _ADDRESS.fullmatch(address)
    host = found["host"].removesuffix(".") if found is not None else ""
    if _NUMBERS.fullmatch(host):
        return IPv4Address(host).is_loopback
    return host.split(".")[-1].lower() == "localhost"


_ZONE = r"[a-z]{2}(-[a-z]+)+-[0-9][a-z]"
_MODEL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+/?"
_Address = Annotated[str, Pattern(f"^{_MODEL}$", "s3://my-models/llama-3-8b/")]
_AdapterName = Annotated[str, Pattern(f"^{ADAPTER_NAME.pattern}$", "sql-assistant")]
ZoneName = Annotated[str, Pattern(f"^{_ZONE}$", "us-east-1a")]
_STORED_KEY = r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9_/+=.@-]+"
_SecretName = Annotated[str, Pattern(f"^{_STORED_KEY}$", "arn:aws:secretsmanager:us-east-1:123456789012:secret:NAME")]
LAMBDA_S = 900
"""The longest time of a Lambda function, and so of an invocation."""
_SET_BY_THE_STACK = ("--tensor-parallel-size", "-tp", "--model", "--served-model-name", ADAPTERS)
"""Arguments of vLLM's server that other fields say."""
_IN_BLOCKS = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.")
_OF_SERVERS = {"servers", "deadline_s", "drain_s", "tiers", "throttling", "slo_classes", "prefix_lead"}
"""The fields of a pool of servers that run already."""
_MIXED = ("g6e.xlarge", "g6e.2xlarge", "g6e.4xlarge")
"""Instance types with the same GPU: if AWS is short of one type, another type may be available."""
USABLE = 0.9
"""The part of a GPU's memory that an engine uses; weights must leave room for its KV cache."""


class Range(Strict):
    """The least and the most of something."""

    min: Annotated[int, Field(ge=0, le=10_000)]
    max: Annotated[int, Field(ge=1, le=10_000)]

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if self.min > self.max:
            raise PydanticCustomError("range", "min ({min}) should not be above max", {"min": self.min})
        return self


class CapacityBlock(Strict):
    """GPU instances that were reserved for some days (EC2 Capacity Blocks for ML)."""

    id: Annotated[str, Pattern(r"^cr-[0-9a-f]{8,17}$", "cr-0123456789abcdef0")]
    """The id of the capacity reservation."""
    zone: ZoneName


class ForeignServer(Strict):
    """An OpenAI-compatible server that runs already, reachable from the VPC."""

    url: Annotated[str, Field(max_length=300), AfterValidator(_check_address)]
    """Its address with the path before /chat/completions."""
    model: Annotated[str, Pattern(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$", "llama-3-8b")]
    """The model's name, at the server and for tenants."""
    context_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """None: as the server says."""
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)] = 64
    batch: Annotated[int, Field(ge=1, le=BATCH_MAX)] = 16
    """The sequences that the server computes at once."""
    api_key_secret: _SecretName | None = None
    """The secret in Secrets Manager that is the server's own API key."""


class WorkerSettings(Strict):
    """The field `worker` of a pool: how a worker orders its engine's requests, and what it keeps for evicted ones."""

    policy: Annotated[str, Field(max_length=64)] = "tiered:vtc"
    """The policy of the engine's queue (gpu_worker/policies/fairness/registry.py)."""
    swap_gib: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Host memory for the KV cache of evicted requests. 0: they are computed again."""
    tiers: WorkerTiers | None = None
    """Shares, preemption, targets and shedding, as in examples/worker-tiers.yaml. None: the defaults."""

    @model_validator(mode="after")
    def _agrees(self) -> WorkerSettings:
        try:
            make_queue(self.policy, None if self.tiers is None else self.tiers.for_queue())
        except ValueError as error:
            raise PydanticCustomError("worker", "{problem}", {"problem": " ".join(str(error).split())}) from None
        return self

    def arguments(self) -> list[str]:
        """Return the arguments of the worker."""
        own = ["--policy", self.policy, "--swap-gib", f"{self.swap_gib:g}"]
        tiers = [] if self.tiers is None else ["--tiers", to_json(self.tiers.given()).decode()]
        return [*own, *tiers]


class GateSections(Strict):
    """What a pool's gate decides by. In a pool, None: as the stack has it."""

    tiers: TierFloors | None = None
    throttling: ThrottleLimits | None = None
    slo_classes: SloClassesSection | None = None
    """All three sections are as in the file of tenants (headgate/tenants_file.py)."""
    prefix_lead: Annotated[float, Field(ge=0, le=1)] | None = None
    """A worker may be fuller than the least loaded one by this part of its slots, and still gets a request because it
    had the beginning of its prompt last. 0: it gets none for that."""
    adapter_load_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Input tokens that the load of a LoRA adapter is charged as, to the tenant of the request that an engine loaded it
    for: at the gate, and in engines without another price in `worker.tiers`."""


class Pool(GateSections):
    """Workers that serve one model, and the GPU instances on which they run. A pool's tenants wait in queues of its
    own, and its log decides their order."""

    model: _Address | None = None
    """Where the model's files are. None: the stack starts no worker."""
    adapters: Annotated[dict[_AdapterName, _Address], Field(max_length=ADAPTERS_MAX)] = Field(default_factory=dict)
    """The LoRA adapters of the model: where the files of each are, by the name by which tenants ask for it. A tenant
    may use those that its own configuration names."""
    image: Annotated[str, AfterValidator(check_image)] | None = None
    """The worker's image, with its digest. None: it is built from gpu_worker/Dockerfile."""
    instance_types: Annotated[tuple[str, ...], Field(min_length=1, max_length=20, strict=False)] = _MIXED
    """The preferred one first. The others start when AWS has no more of it."""
    servers: Annotated[tuple[ForeignServer, ...], Field(max_length=20, strict=False)] = ()
    """Instead of a model: servers of one model that run already."""
    capacity: Literal["auto_scaling", "managed_instances", "capacity_block"] = "auto_scaling"
    """From where the instances come: an Auto Scaling group, ECS Managed Instances, or a capacity block of EC2."""
    zones: Annotated[tuple[ZoneName, ...], Field(max_length=6, strict=False)] = ()
    """The zones of the network in which its instances start. Empty: they start in all of them."""
    capacity_block: CapacityBlock | None = None
    on_demand_base: Annotated[int, Field(ge=0, le=10_000)] = 1
    """So many instances are never spot instances."""
    spot_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """The part of all further instances that are spot instances."""
    count: Range = Range(min=1, max=4)
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] = 1
    """The GPUs that one model uses."""
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)] = 320
    batch: Annotated[int, Field(ge=1, le=BATCH_MAX)] = 256
    engine_arguments: Annotated[tuple[str, ...], Field(max_length=100, strict=False)] = ()
    """Further arguments of vLLM's server."""
    worker: WorkerSettings = WorkerSettings()
    drain_s: Annotated[int, Field(ge=1, le=LAMBDA_S)] = 300
    """A worker that ends lets its requests run for so long."""
    weights_gb: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """The size of the model's weights. If it is given, it must fit into the GPUs."""
    shards: Annotated[int, Field(ge=1, le=16)] = 1
    """Each shard has a log and a leader of its own. More than one only beyond some thousand requests per second."""
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

    @field_validator("engine_arguments")
    @classmethod
    def _are_for_the_engine(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")}
        for name in _SET_BY_THE_STACK:
            if name in given:
                raise PydanticCustomError(
                    "engine_argument", "{name} is set by other fields of the pool", {"name": name}
                )
        for name, reason in REFUSED.items():
            if name in given:
                raise PydanticCustomError(
                    "engine_argument", "{name} is refused: {reason}", {"name": name, "reason": reason}
                )
        return words

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
            room_gib = kind.memory_gb / 2
            if self.worker.swap_gib > room_gib:
                raise PydanticCustomError(
                    "swap",
                    "worker.swap_gib of {wanted} does not fit beside the engine into {name}: at most {room}",
                    {"wanted": f"{self.worker.swap_gib:g}", "name": name, "room": f"{room_gib:g}"},
                )
        return self

    @model_validator(mode="after")
    def _has_servers_alone(self) -> Pool:
        useless = sorted(self.model_fields_set - _OF_SERVERS)
        if self.servers and useless:
            raise PydanticCustomError(
                "servers", "servers run already: leave out {fields}", {"fields": ", ".join(useless)}
            )
        if len(names := {server.model for server in self.servers}) > 1:
            raise PydanticCustomError(
                "servers",
                "a pool has one model, and these servers have {names}: give each a pool of its own",
                {"names": ", ".join(sorted(names))},
            )
        return self

    @model_validator(mode="after")
    def _has_adapters_of_a_model(self) -> Pool:
        if self.adapters and self.model is None:
            raise PydanticCustomError("adapters", "adapters belong to a model: give the pool a model")
        if self.model_name in self.adapters:
            raise PydanticCustomError(
                "adapters", "the adapter {name} has the name of the model", {"name": self.model_name}
            )
        return self

    @model_validator(mode="after")
    def _has_its_capacity(self) -> Pool:
        for is_wrong, message in self._impossible():
            if is_wrong:
                raise PydanticCustomError("capacity", message)
        return self

    def _impossible(self) -> Iterator[tuple[bool, LiteralString]]:
        """Yield what cannot be, with its reason."""
        is_block, is_managed = self.capacity == "capacity_block", self.capacity == "managed_instances"
        yield (
            is_block != (self.capacity_block is not None),
            ("capacity: capacity_block and the field capacity_block (id, zone) belong together: give both or none"),
        )
        yield is_block and len(self.instance_types) > 1, "a capacity block has one instance type: name it alone"
        yield (
            is_block and not self.instance_types[0].startswith(_IN_BLOCKS),
            ("EC2 sells capacity blocks of p4d, p4de, p5, p5e and p5en instances only"),
        )
        yield is_block and bool(self.zones), "a capacity block has its own zone: leave out zones"
        yield is_block and self.spot_percent > 0, "a capacity block has no spot instances: leave out spot_percent"
        yield (
            is_managed and self.spot_percent == 100 and self.on_demand_base > 0,
            ("on Managed Instances, spot_percent: 100 needs on_demand_base: 0; or lower the percent"),
        )
        yield (
            is_managed and self.tensor_parallel > 1,
            ("on Managed Instances a task has no shared memory for several GPUs: use capacity: auto_scaling"),
        )

    @property
    def model_name(self) -> str:
        """The name by which tenants ask for the model: that of its servers, or the last part of its address. Empty
        without either."""
        if self.servers:
            return self.servers[0].model
        return (self.model or "").rstrip("/").rpartition("/")[2]

    @property
    def own_zones(self) -> tuple[str, ...]:
        """The zones in which its instances start; empty: all of the network."""
        return self.zones if self.capacity_block is None else (self.capacity_block.zone,)

    def types(self) -> dict[str, InstanceType]:
        return {name: INSTANCE_TYPES[name] for name in self.instance_types}

    @property
    def on_demand_max(self) -> int:
        """The most instances at once that are not spot instances."""
        above = max(0, self.count.max - self.on_demand_base)
        return self.count.max - above * self.spot_percent // 100
