"""A gate in a Lambda sandbox: one event loop and one context for many calls of a handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dispatcher.bootstrap import make_context, make_log_keeper, make_scaler
from dispatcher.config import Config, load_config
from dispatcher.model.pool_delays import PoolDelays
from dispatcher.model.scaling import FleetLoad, ScaleReport
from dispatcher.operations.context import Context
from dispatcher.operations.scaling import Scaling

if TYPE_CHECKING:
    from dispatcher.service.load_watch import LoadWatch
    from dispatcher.service.log_keeper import LogKeeper


class Runtime:
    """A gate for the life of a Lambda sandbox: one event loop and one context for many calls of the handler."""

    def __init__(self, context: Context | None = None) -> None:
        self._runner = asyncio.Runner()
        self.context = context or self._runner.run(_made())
        self._keeper: LogKeeper | None = None
        self._watch: LoadWatch | None = None
        self._scaling: Scaling | None = None

    def fleet_load(self) -> FleetLoad:
        """Return the load of the pool. Raises StoreUnavailable, LogGap, LogCorrupt."""
        return self._runner.run(self._load_watch().load())

    def pool_delays(self) -> PoolDelays:
        """Return how late the pool is. Raises what `fleet_load` raises."""
        return self._runner.run(self._load_watch().delays())

    def scale(self, load: FleetLoad) -> ScaleReport:
        """Decide how many workers the pool should have, and set the number if the configuration names a service."""
        if self._scaling is None:
            config = load_config()
            self._scaling = Scaling(make_scaler(config), config.scale_settings(), self.context.clock)
        return self._runner.run(self._scaling.sweep(load))

    def keep_log(self) -> bool:
        """Save a snapshot of the log if one is due and no gate process does it. Return whether one was saved."""
        self._keeper = self._keeper or make_log_keeper(load_config(), self.context)
        return bool(self.run(self._keeper.keep()))

    def run(self, work: Any) -> Any:
        """Run a coroutine and all tasks that it spawned to the end. Nothing runs while the sandbox is frozen."""
        return self._runner.run(self._finished(work))

    def _load_watch(self) -> LoadWatch:
        self._watch = self._watch or _made_watch(load_config(), self.context)
        return self._watch

    async def _finished(self, work: Any) -> Any:
        try:
            return await work
        finally:
            await self.context.finish()
            await self.context.tracing.flush()


async def _made() -> Context:
    return make_context()


def _made_watch(config: Config, context: Context) -> LoadWatch:
    from dispatcher.service.load_watch import LoadWatch  # here: only the sweep reads the log

    return LoadWatch(context.store.log(config.shard), config.shard_settings(), context.clock)
