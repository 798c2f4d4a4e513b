"""What the gate knows of a pool's workers: what they support, can load, should load, and how loaded they are. Pure.

A worker registers the capabilities of its engine, beside plain text. The gate refuses a field, by its name, if a worker
of the model lacks the capability that the field needs. The adapters of a model are capabilities too, so a request for
one runs on any worker of the model.

A plan in the log names the model of each worker, and its order of request groups. The load and the delays that the log
shows decide how many workers the pool should have, and a FleetScaler is the service that runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple, Protocol


class Capability(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    SAMPLING = "sampling"
    """`top_p`, `top_k`, `min_p`, the penalties and `logit_bias`."""
    CHOICES = "n"
    LOGPROBS = "logprobs"
    TOOLS = "tools"
    STRUCTURED = "structured"
    """`response_format` with a JSON schema, or with any JSON object."""
    IMAGES = "images"
    REASONING = "reasoning"
    LENGTH = "length"
    """`ignore_eos` and `min_tokens`."""
    TOKEN_IDS = "token_ids"  # noqa: S105
    """A prompt as token ids. (Inputs of embeddings may be token ids with EMBEDDINGS alone.)"""
    VLLM = "vllm"
    """The fields of vLLM's own request models."""


ADAPTER_PREFIX = "adapter:"
"""A worker registers each LoRA adapter of its model as a capability: this prefix, and the adapter's name."""
ADAPTERS_MAX = 64
"""The most adapters of a worker. Its row in the log has their names."""
TEXT: frozenset[str] = frozenset({Capability.CHAT, Capability.COMPLETION})
"""What every engine that generates text supports."""
CAPACITY_MAX = 1e9
"""The most service units a second of a worker. A larger number in a report is a mistake."""
SLOTS_MAX, BATCH_MAX = 1024, 4096
"""The most slots of a worker, and the largest batch of its engine."""


def common_capabilities(registered: Iterable[Iterable[str]]) -> frozenset[str]:
    """Return what all workers support. A worker that registered nothing is of an older version and generates text."""
    each = [frozenset(names) or TEXT for names in registered]
    return frozenset.intersection(*each) if each else frozenset()


def adapters_of(capabilities: Iterable[str]) -> frozenset[str]:
    """Return the names of the adapters among the capabilities."""
    found = (name for name in capabilities if name.startswith(ADAPTER_PREFIX))
    return frozenset(name.removeprefix(ADAPTER_PREFIX) for name in found)


class LoadableModel(NamedTuple):
    """A model that a worker can load, and what is known of it. The loaded model is one of them."""

    model: str
    swap_s: float
    """Seconds to load it instead of the loaded model, from the start of the swap; 0 for the loaded model."""
    context_tokens: int
    bytes_per_token: float
    service_per_s: float
    """The worker's measured capacity with it, in service units a second; 0 while unknown."""
    capabilities: tuple[str, ...] = ()
    """What its engine supports, sorted: the names are those of Capability."""

    @classmethod
    def of(cls, fields: Iterable[Any]) -> LoadableModel:
        """Return the model of a list from JSON, without further fields of a later version. Raises TypeError."""
        loaded = cls(*islice(fields, len(cls._fields)))
        return loaded._replace(capabilities=tuple(loaded.capabilities))


GROUPS_MAX = 64
"""The groups of a plan in the log."""
ORDER_MAX = 16
"""The groups in the order of one worker."""


class WorkerPlan(NamedTuple):
    """`model`: the model that the worker should have now. `order`: the numbers of its groups, first to last."""

    worker: str
    model: str
    order: tuple[int, ...]

    @classmethod
    def of(cls, fields: Iterable[Any]) -> WorkerPlan:
        """Return the plan of a list from JSON, without further fields of a later version. Raises TypeError."""
        loaded = cls(*islice(fields, len(cls._fields)))
        return loaded._replace(order=tuple(loaded.order))


class GroupPlan(NamedTuple):
    """Requests that are planned together. `due_at`: of the first one; `ends_at`: when the last one is expected to be
    served; both in Unix seconds. `tenant` is empty for the groups that a plan in the log has no room for."""

    tenant: str
    model: str
    slo_class: str
    length_bucket: int
    requests: int
    due_at: float
    ends_at: float
    is_entitled: bool

    @classmethod
    def of(cls, fields: Iterable[Any]) -> GroupPlan:
        """Return the group of a list from JSON, without further fields of a later version. Raises TypeError."""
        return cls(*islice(fields, len(cls._fields)))

    @property
    def is_late(self) -> bool:
        return self.ends_at > self.due_at

    @property
    def late_s(self) -> float:
        """The seconds from the due time of the first request to the expected end of the last, if that is later."""
        return max(0.0, self.ends_at - self.due_at)


class WorkerLoad(NamedTuple):
    """A worker that is ready, in the sense of FleetLoad.ready."""

    worker: str
    running: int
    """The calls that run on it."""
    is_retiring: bool = False
    """It gets no new work, because it will be stopped (commands.Retire)."""
    is_last: bool = False
    """No other ready worker has its model."""


class FleetLoad(NamedTuple):
    """The load of a pool at one moment. Service in service units."""

    ready: int
    """Workers that serve, that rest for some seconds after failures, or that retire."""
    leaving: int
    """Workers that drain, or that sent no heartbeat for some seconds."""
    holding: int
    """The smallest number of workers with slots for the calls that run now."""
    waiting: Mapping[str, int]
    """The waiting calls by tier; a tier without any has 0."""
    waiting_service: float
    """Expected service of the waiting calls that may not wait longer: all but those of deferred classes with slack."""
    arriving_per_s: float
    """Service that arrives in a second, without deferred classes."""
    service_per_s: float
    """The measured capacity of one worker in service units a second, a mean of the fleet; 0 if none is measured."""
    workers: tuple[WorkerLoad, ...] = ()
    """The loads of the workers that are ready."""


class ServiceCount(NamedTuple):
    """The workers of a fleet's service. `existing`: those that start or run; a draining one may be missing."""

    desired: int
    existing: int


class ScaleReport(NamedTuple):
    """What one sweep decided. `wanted`: the workers that the pool should have; None if the service could not be read.
    `problem`: why the number could not be read or set; empty if it could."""

    wanted: int | None
    problem: str = ""


class FleetScaler(Protocol):
    """The service that runs a pool's workers, and starts or stops them until their number is the desired one.

    All methods raise StoreUnavailable if the service cannot be read or changed.
    """

    async def count(self) -> ServiceCount: ...

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        """Make sure that a smaller number, set now, stops none of these workers, and may stop `leaver` at once."""
        ...

    async def set(self, workers: int) -> None:
        """Set the desired number. Return before the workers have started or stopped."""
        ...


class PoolDelays(NamedTuple):
    """How late a pool is, in seconds: the values behind the alarms for waiting and for a log that stands still."""

    oldest_wait_s: Mapping[str, float]
    """For each tier, how long the oldest waiting call has waited, without deferred classes; 0 if none waits."""
    overdue_s: float
    """For how long a decision has been due that is not in the log; 0 if none is due. A deadline of a waiting call, the
    end of a worker's rest and the end of an order to load a model are due at a known time, and a gate that works
    decides them in a second."""
