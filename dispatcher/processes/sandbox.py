"""A gate in a Lambda sandbox: one event loop and one context for many calls of a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.operations.context import Context
from dispatcher.processes.bootstrap import make_context
from dispatcher.settings.config import load_config

if TYPE_CHECKING:
    from dispatcher.processes.pool_sweep import PoolSweep


class Runtime:
    """A gate for the life of a Lambda sandbox: one event loop and one context for many calls of the handler."""

    def __init__(self, context: Context | None = None) -> None:
        self._runner = asyncio.Runner()
        self.context = context or self._runner.run(_new_context())
        self._sweeps: Sequence[PoolSweep] = ()

    def sweeps(self) -> Sequence[PoolSweep]:
        """Return the sweep of each pool, always the same ones."""
        self._sweeps = self._sweeps or _made_sweeps(self.context)
        return self._sweeps

    def run(self, work: Any) -> Any:
        """Run a coroutine and all tasks that it spawned to the end. Nothing runs while the sandbox is frozen."""
        return self._runner.run(self._run_and_finish(work))

    async def _run_and_finish(self, work: Any) -> Any:
        try:
            return await work
        finally:
            await self.context.finish()
            await self.context.tracing.flush()


async def _new_context() -> Context:
    return make_context()


def _made_sweeps(context: Context) -> Sequence[PoolSweep]:
    from dispatcher.processes.pool_sweep import PoolSweep  # here: only the sweep reads the log

    configs = {config.pool: config for config in load_config().each_pool()}
    return [PoolSweep(context, pool, configs[pool.name]) for pool in context.pools]
