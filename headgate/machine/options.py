"""Options of the processes on one machine, validated: for `headgate local`, `headgate demo` and `headgate serve`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.fleet import BATCH_MAX, SLOTS_MAX
from dispatcher.policies.clocks import Share
from dispatcher.settings.strict import Loc, explain

SMALL_MODEL = "random:8x384"
"""Layers x width. On a CPU it makes some 200 tokens a second, so tenants compete for the engine."""
START_TIMEOUT_S = 90.0
"""A worker on a slow machine imports torch and builds its model in this time."""
_DEMO_TENANTS = ("quiet", "flood")
PORT_MAX = 65535
WORKERS_MAX = 8
"""The most workers on one machine."""
LOG_BYTES_MAX = 16 * 1024 * 1024
"""A longer log of a process is moved to `<name>.log.1`, in place of the one before."""


def _visible(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"give it visible characters, not {text[:80]!r}")
    return text


_Visible = Annotated[str, AfterValidator(_visible)]


class ServedModel(NamedTuple):
    """A model of a worker. `load_s`: the seconds that loading it takes. `profile`: of the modelled engine, as JSON
    (gpu_worker/service/modelled_profile.py); empty for its own."""

    name: str
    load_s: float
    profile: str = ""


class SwappingWorker(NamedTuple):
    """A worker of several models, the loaded one first."""

    models: tuple[ServedModel, ...]
    slots: int


class WorkerFailure(NamedTuple):
    """The worker of this number is killed `at_s` seconds after the start, and started again `for_s` seconds later."""

    worker: int
    at_s: float
    for_s: float


class FleetOptions(BaseModel):
    """The options that fronts, gates and workers of one machine share. `description`: the help of the option."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    engine: Literal["transformers", "modelled", "vllm", "openai"] = Field(
        default="transformers",
        description="Engine of the workers: vllm, openai, transformers, or modelled (needs no torch).",
    )
    url: _Visible | None = Field(default=None, description="With --engine openai: URL of the server, ending in /v1.")
    context_tokens: int | None = Field(
        default=None, ge=1, description="With --engine openai: the context length of its model."
    )
    """None: the server reports it."""
    engine_arguments: tuple[str, ...] = ()
    """Arguments of vLLM's own server, for the vllm engine."""
    model: _Visible | None = Field(
        default=None, description="Folder of a Hugging Face model; default: a small one, built here."
    )
    """None: a small model with random weights, built on this machine (SMALL_MODEL). For the openai engine: the model's
    name at its server; None: the server's only model."""
    fleet: Path | None = Field(
        default=None,
        description="YAML file of a fleet that swaps models, as for `headgate simulate --fleet`: workers and "
        "their models.",
    )
    """The file that `swapping` was read from; None: all workers serve `model`."""
    swapping: tuple[SwappingWorker, ...] = Field(default=(), max_length=WORKERS_MAX)
    """The workers of a fleet that swaps models."""
    failures: tuple[WorkerFailure, ...] = ()
    """The failures of its file. Only `headgate serve` plays them."""
    slo_classes: str = ""
    """JSON for HEADGATE_SLO_CLASSES; empty: as the file of tenants says, or none."""
    fronts: int = Field(default=1, ge=1, le=16, description="Number of HTTP fronts, on --port and the ports after it.")
    workers: int = Field(default=1, ge=1, le=WORKERS_MAX, description="Number of worker processes.")
    slots: int = Field(default=8, ge=1, le=SLOTS_MAX, description="Requests that a worker takes at a time.")
    """Slots of a worker. More than its batch, so that the engine's queue has requests to order."""
    batch: int | None = Field(
        default=None, ge=1, le=BATCH_MAX, description="Sequences in the engine's batch; fewer than --slots."
    )
    """None: the worker's default."""
    swap_gib: float = Field(default=0.0, ge=0, le=99_999, description="GiB of host memory for swapped KV.")
    """0: an evicted request is computed again."""
    kv_tokens: int | None = Field(
        default=None,
        ge=64,
        le=100_000_000,
        description="With --engine transformers: tokens of KV; default: what the device can hold.",
    )
    step_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="With --engine transformers: tokens of a step; longer prompts come in pieces.",
    )
    """None: by the device."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        default=None, description="With --engine transformers: auto, float32, bfloat16 or float16."
    )
    """The type of weights and cache; None: auto."""
    sleep_memory_gb: float = Field(
        default=0.0,
        ge=0,
        le=99_999,
        description="GB of host memory for each worker's sleeping models; 0: they are stopped instead.",
    )
    sleep_level: Literal[1, 2] = Field(
        default=1, description="Of vLLM's sleep: 1 keeps weights in host memory, 2 reads them again."
    )
    """See gpu_worker/engines/vllm/process.py."""
    worker_tiers: Path | None = Field(
        default=None, description="YAML file: tiers, targets and shedding in the workers."
    )
    order: Literal["bwfq", "fcfs", "sfq", "ratio", "ratio+wake"] = Field(
        default="bwfq", description="Order at the gate: bwfq, sfq, fcfs, ratio+wake or ratio (for guarantees only)."
    )
    policy: Literal["vtc", "fcfs", "tiered:vtc"] = Field(
        default="tiered:vtc", description="Order of the engine's queue: vtc, fcfs or tiered:vtc."
    )
    """With tiered:vtc a request's tier comes before its tenant's counter."""
    host: str = Field(
        default="127.0.0.1", description="Address on which the front listens; 0.0.0.0 for all of this machine."
    )
    port: int = Field(
        default=8080,
        ge=0,
        le=PORT_MAX,
        description="Port of the HTTP front, which speaks OpenAI's API; 0 takes a free port.",
    )
    """The other fronts take the following ports. 0: every front takes a free port."""
    start_timeout_s: float = Field(
        default=START_TIMEOUT_S, gt=0, description="Seconds that each process may take to start."
    )
    home: Path
    """Folder for logs and the built model."""
    temporary: Path | None = None
    """A folder around `home` that ends with the processes, even if they are killed."""


class WorkerGroup(NamedTuple):
    """Workers of one pool that are alike. `values`: the fields of FleetOptions that are their own."""

    pool: str
    values: Mapping[str, Any]


class StackOptions(FleetOptions):
    """Options of the stand-in for AWS."""

    aws_port: int = Field(default=0, ge=0, le=PORT_MAX, description="Port of the AWS endpoint; 0 takes a free port.")
    tenants: dict[str, Share] = Field(default_factory=lambda: {name: Share() for name in _DEMO_TENANTS})
    queue_items_max: int = Field(default=1000, ge=0)
    file: Path | None = None
    """The headgate.yaml from which `groups` and `variables` were read; None: they have their defaults."""
    groups: tuple[WorkerGroup, ...] = (WorkerGroup("default", {}),)
    """The workers, pool by pool."""
    batches: bool = False
    """Take batches also if `slo_classes` is empty, because a pool has classes of its own."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Further variables of all processes: what headgate.yaml sets for the gate."""
    store: Literal["moto", "dynamodb-local"] = Field(
        default="moto", description="The local DynamoDB: moto or dynamodb-local."
    )
    """dynamodb-local: Amazon's DynamoDB Local, which needs Java and its npm package."""


Options = TypeVar("Options", bound=FleetOptions)


def validated(kind: type[Options], **values: object) -> Options:
    """Validate options from the command line. Raises ConfigurationError, which names the option."""
    try:
        options = kind.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, kind, _option)) from None
    if options.engine_arguments and options.engine != "vllm":
        raise ConfigurationError(f"Arguments after -- are for vLLM's server: --engine {options.engine} takes none.")
    for name in ("kv_tokens", "step_tokens", "dtype"):
        if getattr(options, name) is not None and options.engine != "transformers":
            option = f"--{name.replace('_', '-')}"
            raise ConfigurationError(f"{option} is for --engine transformers, and the engine is {options.engine}.")
    return options


def _option(loc: Loc) -> str:
    return "--" + ".".join(str(part).removesuffix("_s") for part in loc).replace("_", "-")


def stack_options(**values: object) -> StackOptions:
    return validated(StackOptions, **values)


class ProcessAddress(BaseModel):
    """One process of a running stack. `role`: front, gate, worker, moto, dynamodb-local, lambda or executor."""

    model_config = ConfigDict(frozen=True)

    role: str
    pid: int
    url: str | None
    """Its own address, if it listens."""


class Addresses(BaseModel):
    """Addresses and keys of a running stack: the fields of `headgate local --json`."""

    model_config = ConfigDict(frozen=True)

    openai_base_url: str
    openai_base_urls: list[str]
    """The base URL of each front. The first is `openai_base_url`."""
    aws_endpoint_url: str
    model: str
    """The name of the first pool's model."""
    pools: dict[str, str]
    """The name of each pool's model."""
    api_keys: dict[str, str]
    operator_url: str
    operator_token: str
    """Opens the page for operators at `operator_url`."""
    processes: list[ProcessAddress]
    """The processes at the time when the stack was ready. Lambda environments come and go later."""
