"""The gate's configuration: a frozen model, read once from the environment."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, Json, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.shards import SHARDS_MAX, shard_name
from dispatcher.operations.limits import DEADLINE_MAX_S, GateSettings, LimitSettings
from dispatcher.operations.pools import DEADLINE_S
from dispatcher.operations.worker_count import ScaleSettings
from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.service import ADAPTER_LOAD_TOKENS, CACHED_FRACTION
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.settings.sections import SloClassesSection
from dispatcher.settings.strict import Loc, explain
from dispatcher.shard.settings import SWAP_CHARGE, ShardSettings, TierFloors

_PREFIX = "HEADGATE_"
_ALMOST = 0.85
"""Similarity from which on a name is taken for a mistyped one. Other programs of headgate have variables too."""
_logger = logging.getLogger(__name__)
_SQLITE = "sqlite:"
_SQLITE_FILE = re.compile(r"sqlite:.*[^/\s]")
_FILES = re.compile(r"folder:.*\S|s3:[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?")
LOG_STRIPES_MAX = 16
LogStripes = Annotated[int, Field(ge=1, le=LOG_STRIPES_MAX)]
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[^/\s*]+)$")]
PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
PoolField = Literal[
    "models", "adapters", "adapter_load_tokens", "prefix_lead", "deadline_s", "tiers", "throttling", "slo_classes",
    "ecs_service", "workers_min", "workers_max", "scale_to_zero", "worker_start_s", "shards",
]  # fmt: skip
"""The fields of Config that a pool of HEADGATE_POOLS may have for itself."""


class Config(BaseModel, GateSettings, ScaleSettings, frozen=True, extra="ignore"):
    """Each field, also of the bases, is the environment variable HEADGATE_<NAME>. Times are in seconds.

    It is given as it is where settings of a base are needed.
    """

    store: str = "dynamodb"
    """Where the gate's state is stored: "dynamodb", or "sqlite:PATH" for a file on this machine."""
    table: str = Field(default="headgate", min_length=3, max_length=255)
    """Name of the DynamoDB table."""
    queue_url: str = ""
    """URL of the SQS queue of detached executions. If it is empty, an executor that is connected to the leader executes
    the durable calls that no process holds; without an executor they wait."""
    pool: PoolName = "default"
    """The pool of a gate process or worker. Without `pools` it is also the only pool that a front serves."""
    pools: Json[dict[PoolName, dict[PoolField, Any]]] = {}
    """JSON: {pool: {"models": […], and other fields of a pool, by their names here}}: all pools behind one address.
    What a pool leaves out has the value of the process's own variable; of several pools, each needs "models". Unset:
    the one pool `pool`."""
    gate_address: str = Field(default="", pattern=r"^([^\s/]+:[0-9]{1,5})?$")
    """The "host:port" at which other processes reach this gate process. Empty: the address at which it listens."""
    order: Literal["bwfq", "fcfs", "sfq", "ratio", "ratio+wake"] = "bwfq"
    """The gate's order. `fcfs` is the baseline without headgate's policy; the others are compared with `bwfq`."""
    worker_secret: str = Field(default="", repr=False)
    """The secret with which the gate signs orders and a worker checks them; at least 16 characters. While it is
    rotated: two, separated by a comma. The first signs, both are accepted."""
    worker_secret_arn: str = ""
    """The name of that secret in Secrets Manager, instead of the secret itself."""
    operator_token: str = Field(default="", repr=False)
    """The token that opens the operator's page, `GET /operator`; at least 32 characters. Empty: a front has no such
    page, unless `operator_token_arn` is set."""
    operator_token_arn: str = ""
    """The name of that token in Secrets Manager, instead of the token itself."""
    deadline_s: float = Field(default=DEADLINE_S, gt=0, le=900)
    """The longest time from a request's arrival to its last token."""
    files: str = ""
    """Where the files of the batch API are stored: "folder:PATH", or "s3:BUCKET" or "s3:BUCKET/PREFIX/". Empty: the
    service has no batch API."""
    lead_max: float = Field(default=LEAD_MAX, gt=0)
    """The bound on the distance between a tenant's virtual clock and the pool's, in service units for a weight of 1
    (policies/clocks.py)."""
    prefix_lead: float = Field(default=0.0, ge=0, le=1)
    """The part of its slots by which a worker may be fuller than the least loaded one, and still get a call because it
    had the beginning of its prompt last. 0: calls go to the least loaded worker."""
    cached_fraction: float = Field(default=CACHED_FRACTION, ge=0, le=1)
    """The price of an input token from an engine's prefix cache, relative to a computed one, for gate and engines."""
    adapter_load_tokens: int = Field(default=ADAPTER_LOAD_TOKENS, ge=0, le=1_000_000)
    """Input tokens that the load of a LoRA adapter is charged as, to the tenant of the call that an engine loaded it
    for. Also the price of an engine that has none of its own (`adapter_load_tokens` of its tiers)."""
    swap_charge: float = Field(default=SWAP_CHARGE, ge=0, le=1)
    """The part of what a worker could serve during a swap which the tenant that needs the swap pays in the surplus
    (docs/shares.md); 0: no tenant pays."""
    tiers: Json[TierFloors] | None = None
    """JSON: {"shares": {tier: fraction}, "slack": service units}. Unset: the gate ignores tiers."""
    throttling: Json[ThrottleLimits] | None = None
    """JSON: {"user": requests, "app": requests, "apps": {…}, "window_s": seconds}. Unset: no throttling."""
    slo_classes: Json[SloClassesSection] | None = None
    """JSON: {name: {"first_token_s": seconds, "deferred": true or false}}. Unset: requests have no SLO classes."""
    slo_window: float = Field(default=Slack().window, ge=0)
    """The service units, for a weight of 1, by which a request that is due soon may pass others of the surplus
    (policies/orders/slack_index.py)."""
    limits: Json[LimitSettings] = Field(default=LimitSettings())
    """JSON: the limits of one front, by their names in dispatcher/operations/limits.py."""
    cors_origins: Json[tuple[Origin, ...]] = ()
    """JSON: the origins of the web pages that may call the HTTP face from a browser, for example
    ["https://chat.example.com"]; ["*"] for all. Unset: none."""
    store_threads: int = Field(default=16, ge=1, le=256)
    """The most concurrent requests of one process to DynamoDB."""
    log_stripes: LogStripes = 1
    """The partitions of the table over which the log of each pool is striped from its next entry on (docs/scale.md). It
    changes a log once, and no process of an older version can use that log any more."""
    ecs_service: str = Field(default="", pattern=r"^([A-Za-z0-9_-]{1,255}/[A-Za-z0-9_-]{1,255})?$")
    """"cluster/service": the ECS service of the pool's workers. The sweep sets its desired count. Empty: the sweep only
    publishes the number of workers that the pool should have."""
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    """The shards of the pool, each with a log and a leader of its own; a tenant's calls are in one of them
    (docs/gate.md)."""
    models: Json[tuple[str, ...]] = ()
    """JSON: the names of the models that the pool serves, for example ["llama-3-8b"]. They are known also while the
    pool has no worker, and with an ECS service a request for one of them starts the first worker."""
    adapters: Json[tuple[str, ...]] = ()
    """JSON: the names of the LoRA adapters of these models. A pool of several needs them only to find the pool of an
    adapter while it has no worker: workers register theirs. A tenant needs the adapter in its own configuration."""

    @field_validator("store")
    @classmethod
    def _names_a_store(cls, store: str) -> str:
        if store != "dynamodb" and not _SQLITE_FILE.fullmatch(store):
            raise PydanticCustomError("store", 'use "dynamodb", or "sqlite:PATH" with the path of a file')
        return store

    @field_validator("files")
    @classmethod
    def _names_files(cls, files: str) -> str:
        if files and not _FILES.fullmatch(files):
            raise PydanticCustomError("files", 'use "folder:PATH", "s3:BUCKET" or "s3:BUCKET/PREFIX/"')
        return files

    @model_validator(mode="after")
    def _stripes_a_table(self) -> Self:
        if self.log_stripes > 1 and self.store_path:
            raise PydanticCustomError("log_stripes", "HEADGATE_LOG_STRIPES is for DynamoDB: a file has no partitions")
        return self

    @model_validator(mode="after")
    def _bounds_the_workers(self) -> Self:
        if self.pools:
            return self  # each pool is checked by itself
        if self.ecs_service and "workers_max" not in self.model_fields_set:
            raise PydanticCustomError("workers", "set HEADGATE_WORKERS_MAX beside HEADGATE_ECS_SERVICE")
        if self.workers_min > self.workers_max:
            raise PydanticCustomError("workers", "HEADGATE_WORKERS_MIN is above HEADGATE_WORKERS_MAX")
        if self.scale_to_zero and self.ecs_service and not self.models:
            raise PydanticCustomError(
                "workers", "HEADGATE_SCALE_TO_ZERO needs HEADGATE_MODELS: a request for them starts a worker"
            )
        if self.scale_to_zero and self.workers_min:
            raise PydanticCustomError("workers", "HEADGATE_SCALE_TO_ZERO needs HEADGATE_WORKERS_MIN 0")
        return self

    @model_validator(mode="after")
    def _fits_the_pools(self) -> Self:
        if not self.pools:
            return self
        if "pool" in self.model_fields_set and self.pool not in self.pools:
            raise _wrong_pools(f"HEADGATE_POOL is {self.pool!r}; HEADGATE_POOLS has only {', '.join(self.pools)}")
        pools = self.each_pool()
        for each in pools:
            if not each.models and len(pools) > 1:
                raise _wrong_pools(f'HEADGATE_POOLS: the pool {each.pool!r} needs "models", the models that it serves')
        _check_distinct("model", (name for each in pools for name in {*each.models, *each.adapters}))
        _check_distinct("ECS service", (each.ecs_service for each in pools if each.ecs_service))
        return self

    def each_pool(self) -> tuple[Self, ...]:
        """Return the configuration of each pool that a front serves, in order. `pool` names it, and `pools` is empty.

        Raises ConfigurationError for a pool's field with a wrong value.
        """
        return tuple(self._pool_of_front(name) for name in self.pools) if self.pools else (self,)

    def of_pool(self, name: str = "") -> Self:
        """Return the configuration of one pool; empty: that of HEADGATE_POOL, or the only one.

        Raises ConfigurationError if HEADGATE_POOLS does not have it, or has several and HEADGATE_POOL names none.
        """
        known = ", ".join(self.pools)
        if not self.pools:
            return self._merge_values({"pool": name}) if name else self
        if not name and "pool" not in self.model_fields_set and len(self.pools) > 1:
            raise ConfigurationError(f"there are several pools: name one of {known} (--pool, or HEADGATE_POOL)")
        name = name or (self.pool if "pool" in self.model_fields_set else known)
        if name not in self.pools:
            raise ConfigurationError(f"there is no pool {name[:80]!r}: HEADGATE_POOLS has {known}")
        return self._pool_of_front(name)

    def _pool_of_front(self, name: str) -> Self:
        """Return the process's values with those of the pool, each checked as the variable of its name."""
        values = self.pools[name].items()
        own: dict[str, Any] = {field: each if field == "ecs_service" else json.dumps(each) for field, each in values}
        return self._merge_values({**own, "pool": name}, f"HEADGATE_POOLS.{name}")

    def _merge_values(self, values: Mapping[str, Any], place: str = "") -> Self:
        process = self.model_dump(round_trip=True, exclude_unset=True, exclude={"pools"})
        try:
            return self.model_validate({**process, **values})
        except ValidationError as error:
            raise ConfigurationError(explain(error, type(self), lambda loc: _variable(loc, place))) from None

    @property
    def store_path(self) -> str:
        """The file of a SQLite store; empty if the store is DynamoDB."""
        return self.store.removeprefix(_SQLITE) if self.store.startswith(_SQLITE) else ""

    @property
    def slo_class_names(self) -> tuple[str, ...]:
        """The names of the SLO classes of all pools."""
        classes = (each.slo_classes.root for each in self.each_pool() if each.slo_classes)
        return tuple(dict.fromkeys(name for each in classes for name in each))

    @property
    def shard_names(self) -> tuple[str, ...]:
        """The names of the pool's shards, which their logs and snapshots have."""
        return tuple(shard_name(self.pool, number) for number in range(self.shards))

    @property
    def longest_s(self) -> float:
        """The longest deadline of a request: in Lambda `deadline_s` up to DEADLINE_MAX_S."""
        return min(self.deadline_s, DEADLINE_MAX_S) if self.front == "lambda" else self.deadline_s

    @property
    def batch_queue(self) -> str:
        """Where the table lists the open batches (operations/context.py)."""
        return "default" if self.pools else self.pool

    def shard_settings(self) -> ShardSettings:
        return ShardSettings(
            order=self.order,
            lead_max=self.lead_max,
            cached_fraction=self.cached_fraction,
            adapter_load_tokens=self.adapter_load_tokens,
            prefix_lead=self.prefix_lead,
            swap_charge=self.swap_charge,
            tiers=self.tiers,
            throttling=self.throttling,
            slack=Slack(self.slo_window) if self.slo_classes else None,
            is_sharded=self.shards > 1,
        )


def load_config(environment: Mapping[str, str] | None = None) -> Config:
    """Read the configuration. A number, a choice or JSON without text counts as not set, because Compose and other
    tools pass empty variables on. Of a text the field itself decides: an empty name of a store is refused.

    A variable whose name is almost a known one is not read, and the log says so. Raises ConfigurationError, which names
    the variable.
    """
    source = os.environ if environment is None else environment
    found = {name[len(_PREFIX) :].lower(): value for name, value in source.items() if name.startswith(_PREFIX)}
    values = {name: value for name, value in found.items() if value.strip() or name in _TEXTS}
    for name in values.keys() - Config.model_fields.keys():
        for close in get_close_matches(name, Config.model_fields, n=1, cutoff=_ALMOST):
            _logger.warning("%s is not read (did you mean %s?)", _PREFIX + name.upper(), _PREFIX + close.upper())
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, Config, _variable)) from None


_TEXTS = frozenset(name for name, field in Config.model_fields.items() if field.annotation is str)


def _variable(loc: Loc, place: str = "") -> str:
    """Return the variable in which a field is, or the field at a place within a variable."""
    if not loc:
        return place
    first, *rest = map(str, loc)
    return ".".join([f"{place}.{first}" if place else _PREFIX + first.upper(), *rest])


def _wrong_pools(message: str) -> PydanticCustomError:
    return PydanticCustomError("pools", "{message}", {"message": message})


def _check_distinct(what: str, names: Iterable[str]) -> None:
    """Raise PydanticCustomError if two pools have the same name of `what`."""
    shared = [name for name, count in Counter(names).items() if count > 1]
    if shared:
        raise _wrong_pools(f"HEADGATE_POOLS: the {what} {shared[0]!r} is in two pools: each belongs to one")
