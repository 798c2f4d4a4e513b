"""Reads a pool's log from time to time, for its load, its delays and its suspended calls.

It writes nothing, and needs no running process. The load and the delays follow from the state of the pool's shard; each
takes about a microsecond for a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from dispatcher.model.facts import Accepted, Entry
from dispatcher.model.fleet import FleetLoad, PoolDelays, WorkerLoad
from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.history import ArrivalForecast
from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.ports import Clock, Log
from dispatcher.service.gate.courier import suspended_calls
from dispatcher.service.gate.follower import Delivery, Follower
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.state.records import NO_PROCESS, Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.workers import USABLE

_ALL_TENANTS = ""


class LoadWatch:
    """A copy of the shard that is kept between two reads. Only arrivals in entries that it read one by one count as
    arriving: those that a snapshot contains do not."""

    def __init__(self, log: Log, settings: ShardSettings, clock: Clock) -> None:
        self._clock = clock
        self._follower = Follower(log, settings, clock)
        self._follower.on_entry = self._note
        self._arrivals = ArrivalForecast(tenants_max=1)

    async def load(self) -> FleetLoad:
        """Return the load after all entries so far. Raises StoreUnavailable, LogGap, LogCorrupt."""
        await self._follower.catch_up()
        now = self._clock.now()
        return fleet_load(self._follower.shard.state, self._arrivals.service(_ALL_TENANTS, now, 1.0), now)

    async def delays(self) -> PoolDelays:
        """Return the delays after all entries so far. Raises what `load` raises."""
        await self._follower.catch_up()
        return pool_delays(self._follower.shard, self._clock.now())

    async def suspended(self) -> list[Call]:
        """Return the waiting calls that no process holds, while they are suspended. Raises what `load` raises."""
        await self._follower.catch_up()
        return suspended_calls(self._follower.shard.state)

    async def unheld(self) -> list[Call]:
        """Return the waiting calls that no process holds. Raises what `load` raises."""
        await self._follower.catch_up()
        unheld = self._follower.shard.state.processes.get(NO_PROCESS)
        return [] if unheld is None else [call for call in unheld.calls.values() if not call.worker]

    def _note(self, entry: Entry, _: list[Delivery]) -> None:
        service = sum(fact.terms.cost for fact in entry.facts if isinstance(fact, Accepted) and not fact.terms.deferred)
        if service:
            self._arrivals.record(_ALL_TENANTS, service, entry.at)


_READY = USABLE | {"retiring"}
SLACK_S = 900.0
"""A deferred call may wait until it is due within this time: the longest start-up that counts
(operations/scaling.py). The lines of a batch become due one after another, so their work comes in over time."""


def fleet_load(state: State, arriving_per_s: float, now: float) -> FleetLoad:
    """Return the load. `arriving_per_s`: service that arrives in a second, which the state does not show. `now`: Unix
    seconds, for the slack of deferred calls."""
    running = sum(len(worker.running) for worker in state.workers.values())
    waiting = [call for call in state.calls.values() if call.queued]
    ready = [worker for worker in state.workers.values() if worker.config.state in _READY]
    tiers = Counter({str(tier): 0 for tier in TENANT_TIERS})
    tiers.update(call.tenant.config.tier for call in waiting)
    return FleetLoad(
        ready=len(ready),
        leaving=len(state.workers) - len(ready),
        holding=min(len(ready), ceil(running / max(1, min((worker.slots for worker in ready), default=1)))),
        waiting=dict(tiers),
        waiting_service=sum(call.cost for call in waiting if not _has_slack(call, now)),
        arriving_per_s=arriving_per_s,
        service_per_s=_mean_per_s(ready),
        workers=_loads(ready),
    )


def pool_delays(shard: Shard, now: float) -> PoolDelays:
    """Return how late the pool is at `now`, in Unix seconds."""
    waits = {str(tier): 0.0 for tier in TENANT_TIERS}
    for call in shard.state.calls.values():
        if call.queued and not call.deferred:
            tier = call.tenant.config.tier
            waits[tier] = max(waits.get(tier, 0.0), now - call.arrived_at)
    return PoolDelays(waits, max(0.0, now - shard.next_tick()))


def load_of_pool(shards: Sequence[FleetLoad]) -> FleetLoad:
    """Return the load of a pool from those of its shards. A worker has a part of its slots in each of them."""
    if len(shards) == 1:
        return shards[0]
    waiting = Counter[str]()
    workers: dict[str, WorkerLoad] = {}
    for shard in shards:
        waiting.update(shard.waiting)
        for each in shard.workers:
            known = workers.get(each.worker)
            workers[each.worker] = (
                each
                if known is None
                else each._replace(
                    running=known.running + each.running,
                    is_retiring=known.is_retiring or each.is_retiring,
                    is_last=known.is_last and each.is_last,
                )
            )
    return FleetLoad(
        ready=max(shard.ready for shard in shards),
        leaving=max(shard.leaving for shard in shards),
        holding=max(shard.holding for shard in shards),
        waiting=dict(waiting),
        waiting_service=sum(shard.waiting_service for shard in shards),
        arriving_per_s=sum(shard.arriving_per_s for shard in shards),
        service_per_s=sum(shard.service_per_s for shard in shards),
        workers=tuple(workers.values()),
    )


def delays_of_pool(shards: Sequence[PoolDelays]) -> PoolDelays:
    """Return the delays of a pool: those of its latest shard."""
    tiers = {tier for shard in shards for tier in shard.oldest_wait_s}
    waits = {tier: max(shard.oldest_wait_s.get(tier, 0.0) for shard in shards) for tier in sorted(tiers)}
    return PoolDelays(waits, max(shard.overdue_s for shard in shards))


def _loads(ready: Sequence[Worker]) -> tuple[WorkerLoad, ...]:
    models = Counter(worker.model for worker in ready)
    return tuple(
        WorkerLoad(each.name, len(each.running), each.config.state == "retiring", models[each.model] == 1)
        for each in ready
    )


def _has_slack(call: Call, now: float) -> bool:
    return call.deferred and call.terms.due_at - now > SLACK_S


def _mean_per_s(workers: Sequence[Worker]) -> float:
    measured = [worker.config.service_per_s for worker in workers if worker.config.service_per_s > 0]
    return sum(measured) / len(measured) if measured else 0.0
