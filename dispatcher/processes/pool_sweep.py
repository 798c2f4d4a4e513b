"""What the sweep does for one pool, once a minute: it decides what is due by the clock, and reads the shards' logs.

All methods raise StoreUnavailable; those that read the log also raise LogGap, LogCorrupt.
"""

from __future__ import annotations

import asyncio

from dispatcher.model.commands import Cancel, Tick
from dispatcher.model.fleet import FleetLoad, PoolDelays, ScaleReport
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool
from dispatcher.operations.scaling import Scaling
from dispatcher.processes.bootstrap import make_log_keeper, make_scaler
from dispatcher.service.load_watch import LoadWatch, delays_of_pool, load_of_pool
from dispatcher.service.log_keeper import use_format
from dispatcher.settings.config import Config

_TENANTS_AT_ONCE, _CALLS_AT_ONCE = 100, 500


class PoolSweep:
    """`config`: that of the pool alone (Config.each_pool). It keeps its copies of the shards between two sweeps."""

    def __init__(self, context: Context, pool: Pool, config: Config) -> None:
        self.name = pool.name
        self._pool, self._launcher = pool, context.launcher
        self._watches = [
            LoadWatch(context.store.log(shard), config.shard_settings(), context.clock) for shard in config.shard_names
        ]
        self._scaling = Scaling(make_scaler(config), pool.link, config, context.clock)
        self._keepers = [
            make_log_keeper(config, shard, context.store, context.clock, context.ids) for shard in config.shard_names
        ]
        self._directory = context.directory
        self._starts = self._looked = 0

    async def tick(self) -> None:
        """Let the gate decide what is due, also while nothing else arrives."""
        await self._pool.link.do(Tick())

    async def use_format(self, wanted: int) -> None:
        """Change the format of the pool's logs (service/log_keeper.py). Raises ConfigurationError too."""
        await use_format(self._pool.link, self._keepers, wanted)

    async def load(self) -> FleetLoad:
        return load_of_pool([await each.load() for each in self._watches])

    async def delays(self) -> PoolDelays:
        return delays_of_pool([await each.delays() for each in self._watches])

    async def scale(self, load: FleetLoad) -> ScaleReport:
        """Decide how many workers the pool should have, and set the number if the configuration names a service."""
        return await self._scaling.sweep(load)

    async def start_executor(self) -> bool:
        """Start an executor for one suspended call that no process holds. Return whether there was one.

        A leader does this every AGAIN_S (service/gate/courier.py). Without a gate process nothing else would: the
        executor of each call was started once, with its offer. When an executor holds its call, all these calls get
        offers again. Each sweep takes another call, because the executor of one call may fail each time.
        """
        waiting = [call for each in self._watches for call in await each.suspended()]
        if not waiting:
            return False
        call = waiting[self._starts % len(waiting)]
        self._starts += 1
        await self._launcher.launch(call.id, call.attempt)
        return True

    async def end_of_deleted(self) -> int:
        """End the waiting calls of deleted tenants that no process holds. Return how many.

        A process ends the calls that it holds itself (operations/calls/following.py). Each sweep looks at
        _TENANTS_AT_ONCE tenants and ends _CALLS_AT_ONCE calls at most. What is left ends in a later sweep, or at its
        turn.
        """
        waiting = [call for each in self._watches for call in await each.unheld()]
        tenants = sorted({call.tenant.name for call in waiting})
        start = self._looked % max(1, len(tenants))
        self._looked += _TENANTS_AT_ONCE
        chosen = [*tenants[start:], *tenants[:start]][:_TENANTS_AT_ONCE]
        gone = {each for each in chosen if await self._directory.tenant_of_identity(each) is None}
        ends = [Cancel(call.id, "cancelled") for call in waiting if call.tenant.name in gone][:_CALLS_AT_ONCE]
        await asyncio.gather(*map(self._pool.link.do, ends))
        return len(ends)

    async def keep_log(self) -> bool:
        """Save a snapshot of each log if one is due and no gate process does it. Return whether one was saved."""
        return any([await keeper.keep() for keeper in self._keepers])
