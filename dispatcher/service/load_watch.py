"""Reads a pool's log from time to time, for its load, its delays and its suspended calls.

It writes nothing, and needs no running process.
"""

from __future__ import annotations

from dispatcher.model.facts import Accepted, Entry
from dispatcher.model.fleet import FleetLoad, PoolDelays
from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.forecast import ArrivalForecast
from dispatcher.ports import Clock, Log
from dispatcher.service.gate.follower import Delivery, Follower
from dispatcher.service.gate.launches import suspended_calls
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.fleet_load import fleet_load, pool_delays
from dispatcher.shard.state.records import NO_PROCESS

ALL_TENANTS = ""


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
        return fleet_load(self._follower.shard.state, self._arrivals.service(ALL_TENANTS, now, 1.0), now)

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
            self._arrivals.record(ALL_TENANTS, service, entry.at)
