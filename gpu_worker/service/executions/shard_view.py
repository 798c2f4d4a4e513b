"""What the agent of one shard sees of a worker that serves several: its own executions.

So each shard has a lease of its own. If a shard's gate does not answer, only the calls of that shard are aborted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dispatcher.model.shards import shard_of_call
from gpu_worker.engines.interface import Engine
from gpu_worker.service.executions.execution import Abort
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.health.engine_health import EngineHealth

_IDLE_EVERY_S = 0.05


@dataclass(eq=False)
class ShardExecutions:
    """The executions of one shard's calls. Its methods are those of Executions."""

    executions: Executions
    shard: int

    @property
    def engine(self) -> Engine:
        return self.executions.engine

    @property
    def health(self) -> EngineHealth:
        return self.executions.health

    @property
    def outbox(self) -> Outbox:
        return self.executions.outbox

    @property
    def accepting(self) -> bool:
        return self.shard not in self.executions.closed_shards

    @accepting.setter
    def accepting(self, is_open: bool) -> None:
        if is_open:
            self.executions.closed_shards.discard(self.shard)
        else:
            self.executions.closed_shards.add(self.shard)

    def running(self) -> frozenset[str]:
        return self._own(self.executions.running())

    def live(self) -> frozenset[str]:
        return self._own(self.executions.live())

    def fence(self, name: str, *, is_old: bool) -> None:
        self.executions.fence(name, is_old=is_old)

    async def abort(self, name: str, why: Abort) -> None:
        await self.executions.abort(name, why)

    async def abort_all(self, why: Abort) -> None:
        await asyncio.gather(*(self.executions.abort(name, why) for name in sorted(self.running())))

    async def idle(self) -> None:
        """Wait until nothing of the shard runs and its reports are in the log."""
        while self.live():
            await self.executions.clock.sleep(_IDLE_EVERY_S)

    def _own(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in names if shard_of_call(name) == self.shard)
