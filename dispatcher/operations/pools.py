"""The pools that a process serves behind one address, and a cached view of their workers.

A request goes to the pool of its model. Each pool has a shard of its own, with its own queues of all tenants and its
own leader. So a flood, or the loss of a leader, in one pool leaves the calls of the others untouched.

The view has the models of a pool's workers, loaded or not, and their bytes per token for estimates. A request is
checked against this view. Only the shard decides where the request runs. The view may be some seconds old, so the
workers are read again before a request is refused for an unknown model. A silent worker counts here and in the shard:
the calls for its model wait until it reports again or has left.

A request may name an adapter in place of a model, if its tenant may use it. It then waits for a worker of the adapter's
model, and the shard knows the model only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.model.errors import NoWorker, StoreUnavailable, UnknownModel
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import ADAPTER_PREFIX, common_capabilities
from dispatcher.model.kept import Invocation
from dispatcher.model.tenants import Tenant
from dispatcher.operations.scaling import Waking
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.ports import Clock, GateLink

DEADLINE_S = 300.0
"""The longest time from a request's arrival to its last token, unless the configuration has another."""
FRESH_S = 2.0
PATIENCE_S = 0.25
"""A request waits so long for a read of the workers, then it uses the last view. The read goes on. (If the leader dies,
the read lasts until another process leads.)"""
_LOOK_AGAIN_S = 0.25
"""If a model is unknown and the view is older than this, the workers are read again."""
STALE_S = 60.0
"""The last view is used up to this age if the workers cannot be read in time."""
REMEMBERED_S = 900.0
"""A model that had a worker within this time counts as known: without a worker, its requests get "no worker"."""


class FleetView:
    """`models`: those that count as known, also while no worker has them."""

    def __init__(self, link: GateLink, clock: Clock, models: Collection[str] = ()) -> None:
        self._link = link
        self._models = frozenset(models)
        self._clock = clock
        self._workers: Sequence[WorkerSet] = ()
        self._read_at = self._failed_at = -STALE_S
        """The times of the last read, and of the last one that failed for `read_within`."""
        self._seen: dict[str, tuple[float, WorkerSet]] = {}
        self._reading: asyncio.Task[Sequence[WorkerSet]] | None = None

    async def workers(self, fresh_s: float = FRESH_S, patience_s: float | None = PATIENCE_S) -> Sequence[WorkerSet]:
        """Return the workers, from a view that is at most `fresh_s` seconds old. Raises StoreUnavailable.

        If they cannot be read within `patience_s` seconds (None: no limit), the view may be up to STALE_S old.
        """
        if self._age_s() < fresh_s:
            return self._workers
        try:
            async with asyncio.timeout(patience_s if self._age_s() < STALE_S else None):
                return await self._read()
        except TimeoutError:
            return self._workers
        except StoreUnavailable:
            if self._age_s() < STALE_S:
                return self._workers
            raise

    async def read_within(self, seconds: float, patience_s: float) -> Sequence[WorkerSet]:
        """Return the workers from a view that is at most `seconds` old.

        Raises StoreUnavailable if they cannot be read within `patience_s`, or could not within the last `seconds`. So
        however often this is called, the workers are read once in this time.
        """
        if self._age_s() < seconds:
            return self._workers
        if self._clock.monotonic() - self._failed_at < seconds:
            raise StoreUnavailable()
        try:
            async with asyncio.timeout(patience_s):
                return await self._read()
        except (TimeoutError, StoreUnavailable):
            self._failed_at = self._clock.monotonic()
            raise StoreUnavailable() from None

    def capabilities(self, model: str) -> frozenset[str]:
        """Return what all workers of the model support, by the last view: the gate may choose any of them."""
        return common_capabilities(each.capabilities for each in with_each_model(self._workers) if each.model == model)

    async def worker_for(self, tenant: Tenant, model: str) -> WorkerSet:
        """Return a worker of the model, or of the model of an adapter, as it is with the model loaded.

        Raises UnknownModel (also if the tenant may not use the model or the adapter), NoWorker.

        A model that the tenant's configuration or the pool's names is known, even while no worker has it.
        """
        is_adapter = model in tenant.adapters
        if not tenant.may_use(model) and not is_adapter:
            raise UnknownModel(model)
        found = _usable(await self.workers(), tenant, model)
        if found is None and self._age_s() >= _LOOK_AGAIN_S:
            found = _usable(await self.workers(_LOOK_AGAIN_S, patience_s=None), tenant, model)
        if found is not None:
            return found
        if self._workers and tenant.models is None and not is_adapter and not self._is_known(model):
            raise UnknownModel(model)
        raise NoWorker()

    def _is_known(self, model: str) -> bool:
        return model in self._models or self._was_served(model)

    def _was_served(self, model: str) -> bool:
        seen = self._seen.get(model)
        return seen is not None and self._clock.monotonic() - seen[0] < REMEMBERED_S

    def _age_s(self) -> float:
        return self._clock.monotonic() - self._read_at

    async def _read(self) -> Sequence[WorkerSet]:
        """Read the workers. Concurrent callers share one read."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_once())
            self._reading.add_done_callback(self._forget_reading)
        return await asyncio.shield(self._reading)

    async def _read_once(self) -> Sequence[WorkerSet]:
        workers = tuple(await self._link.fleet())
        self._workers, self._read_at = workers, self._clock.monotonic()
        self._seen = {model: seen for model, seen in self._seen.items() if self._was_served(model)}
        self._seen.update({each.model: (self._read_at, each) for each in with_each_model(workers)})
        return workers

    def _forget_reading(self, reading: asyncio.Task[Sequence[WorkerSet]]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # each waiting caller raises it


def with_each_model(workers: Iterable[WorkerSet]) -> Iterator[WorkerSet]:
    """Yield each worker once for each model that it has or can load, as it would be with this model loaded."""
    workers = tuple(workers)
    yield from workers
    for worker in workers:
        for each in worker.models:
            if each.model != worker.model:
                yield worker._replace(
                    model=each.model,
                    context_tokens=each.context_tokens,
                    bytes_per_token=each.bytes_per_token,
                    service_per_s=each.service_per_s,
                    capabilities=each.capabilities,
                )


def _usable(workers: Sequence[WorkerSet], tenant: Tenant, name: str) -> WorkerSet | None:
    """Return a worker of the model, or of the model of the adapter, of this name, if the tenant may use it."""
    found = _of_model(workers, name) if tenant.may_use(name) else None
    return found or (_of_adapter(workers, name) if name in tenant.adapters else None)


def _of_model(workers: Sequence[WorkerSet], model: str) -> WorkerSet | None:
    return next((each for each in with_each_model(workers) if each.model == model), None)


def _of_adapter(workers: Sequence[WorkerSet], name: str) -> WorkerSet | None:
    """Return a worker of a model of which all workers have the adapter: the gate may choose any of them."""
    each_model, wanted = tuple(with_each_model(workers)), ADAPTER_PREFIX + name
    without = {each.model for each in each_model if wanted not in each.capabilities}
    return next((each for each in each_model if each.model not in without), None)


@dataclass(slots=True)
class Pool:
    """One pool: the link to its shard, the view of its workers, its settings (settings/config.py), and what starts its
    first worker."""

    link: GateLink
    clock: Clock
    name: str = "default"
    """Its shard, its log and its stored rows of usage have this name too."""
    deadline_s: float = DEADLINE_S
    models: Collection[str] = ()
    adapters: Collection[str] = ()
    slo_classes: SloClasses | None = None
    """None: requests have no SLO classes."""
    names_prefixes: bool = False
    """Whether its calls have the keys of their prompts' beginnings (model/prefixes.py)."""
    waking: Waking | None = None
    """None: nothing starts the first worker of the empty pool."""
    fleet: FleetView = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = FleetView(self.link, self.clock, self.models)


class Pools:
    """The pools, in the order of the configuration. There is at least one."""

    def __init__(self, *pools: Pool) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._of_model = {name: pool for pool in pools for name in (*pool.adapters, *pool.models)}
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
        """Return the pool that lists the model or adapter, otherwise the pool that has a worker of it.

        If there is none, return a pool whose workers show that the model is unknown, or the first pool.
        Raises StoreUnavailable if the workers of a pool that could have the model cannot be read.
        """
        if len(self._pools) == 1 or model in self._of_model:
            return self._of_model.get(model, self.first)
        read = [await pool.fleet.workers(_LOOK_AGAIN_S) for pool in self]
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
    each_model = tuple(with_each_model(workers))
    return any(each.model == model or ADAPTER_PREFIX + model in each.capabilities for each in each_model)


def _unless_unavailable(read: Sequence[WorkerSet] | BaseException) -> Sequence[WorkerSet] | None:
    if isinstance(read, StoreUnavailable):
        return None
    if isinstance(read, BaseException):
        raise read
    return read
