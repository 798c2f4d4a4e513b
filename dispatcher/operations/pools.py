"""The pools that a process serves behind one address. A request goes to the pool of its model.

Each pool has a shard of its own, with its own queues of all tenants and its own leader. So a flood, or the loss of a
leader, in one pool leaves the calls of the others untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import WorkerSet
from dispatcher.model.kept import Invocation
from dispatcher.operations.fleet import LOOK_AGAIN_S, FleetView, with_each_model
from dispatcher.operations.scaling.waking import Waking
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.ports import Clock, GateLink


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of one pool that its fronts use. Times are in seconds."""

    name: str = "default"
    """The pool's name, which its shard, its log and its stored rows of usage have too."""
    deadline_s: float = 300.0
    """The longest time from a request's arrival to its last token. A submission may have a shorter deadline."""
    expected_tokens: int = 256
    """The output tokens that the gate expects of a request without max_tokens (output_limits.py)."""
    models: frozenset[str] = frozenset()
    """The models that the pool serves, also while it has no worker."""
    slo_classes: SloClasses | None = None
    """None: requests have no SLO classes."""


@dataclass(slots=True)
class Pool:
    """One pool: the link to its shard, the view of its workers, its settings, and what starts its first worker."""

    link: GateLink
    clock: Clock
    settings: PoolSettings = field(default_factory=PoolSettings)
    waking: Waking | None = None
    """None: nothing starts the first worker of the empty pool."""
    fleet: FleetView = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = FleetView(self.link, self.clock, self.settings.models)

    @property
    def name(self) -> str:
        return self.settings.name


class Pools:
    """The pools, in the order of the configuration. There is at least one."""

    def __init__(self, *pools: Pool) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._of_model = {model: pool for pool in pools for model in pool.settings.models}
        self.first = pools[0]

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._pools)

    def named(self, name: str) -> Pool:
        """Return the pool of a call, which `serving` or `holding` chose."""
        return self._pools[name]

    async def serving(self, model: str) -> Pool:
        """Return the pool whose configuration names the model, otherwise the pool that has a worker of it.

        If there is none, return a pool whose workers show that the model is unknown, or the first pool.
        Raises StoreUnavailable if the workers of a pool that could have the model cannot be read.
        """
        if len(self._pools) == 1 or model in self._of_model:
            return self._of_model.get(model, self.first)
        read = [await pool.fleet.workers(LOOK_AGAIN_S) for pool in self]
        having = (pool for pool, workers in zip(self, read, strict=True) if _has(workers, model))
        staffed = (pool for pool, workers in zip(self, read, strict=True) if workers)
        return next(having, None) or next(staffed, self.first)

    async def holding(self, item: Invocation) -> Pool:
        """Return the pool that has a stored call. If the configuration has no such pool any more, that of its model.

        Raises StoreUnavailable.
        """
        return self._pools.get(item.pool) or await self.serving(item.model)

    async def workers(self, fresh_s: float, patience_s: float) -> Mapping[str, Sequence[WorkerSet] | None]:
        """Return the workers of each pool, from views that are at most `fresh_s` old, or None where they cannot be
        read within `patience_s`."""
        read = (pool.fleet.read_within(fresh_s, patience_s) for pool in self)
        found = await asyncio.gather(*read, return_exceptions=True)
        return {name: _unless_unavailable(each) for name, each in zip(self._pools, found, strict=True)}


def _has(workers: Sequence[WorkerSet], model: str) -> bool:
    return any(each.model == model for each in with_each_model(workers))


def _unless_unavailable(read: Sequence[WorkerSet] | BaseException) -> Sequence[WorkerSet] | None:
    if isinstance(read, StoreUnavailable):
        return None
    if isinstance(read, BaseException):
        raise read
    return read
