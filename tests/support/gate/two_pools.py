"""Two pools behind one front: `chat` serves the model m and `code` the model n. They share tenants, keys and items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.model.commands import Offer
from dispatcher.model.worker_protocol import WorkEvent, WorkOrder
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool, Pools, PoolSettings
from dispatcher.shard.settings import ShardSettings
from tests.support.gate.in_process import InProcessGate
from tests.support.gate.memory_gate import Gate, held, make_gate
from tests.support.gate.worker_client import ScriptedWorkers
from tests.support.memory_files import MemoryFiles

MODELS = {"chat": "m", "code": "n"}


@dataclass
class RoutedWorkers:
    """ports.WorkerClient: each order goes to the workers of its model."""

    by_model: Mapping[str, ScriptedWorkers]

    def execute(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        return self.by_model[order.terms.model].execute(offer, order)

    async def close(self) -> None:
        return None


@dataclass
class TwoPools:
    """`gate` has the shard of `chat`, the tenants a and b, and the front; `code` is the shard of the other pool."""

    gate: Gate
    code: InProcessGate
    code_workers: ScriptedWorkers

    @property
    def chat(self) -> InProcessGate:
        return self.gate.shard

    @property
    def context(self) -> Context:
        return self.gate.context

    def process(self, models: Mapping[str, str] = MODELS, **settings: Mapping[str, Any]) -> Context:
        """Start another front. `models`: the model that the configuration names for each pool. `settings`: by pool."""
        gate, number = self.gate, len(self.gate.contexts)
        shards = {"chat": self.chat, "code": self.code}
        pools = [
            Pool(
                shard.link(f"{name}{number}"),
                gate.clock,
                PoolSettings(name, models=frozenset(filter(None, [models.get(name)])), **settings.get(name, {})),
            )
            for name, shard in shards.items()
        ]
        workers = RoutedWorkers({"m": gate.workers, "n": self.code_workers})
        files = MemoryFiles()
        made = Context(Pools(*pools), gate.store, workers, gate.launcher, gate.clock, gate.ids, files=files)
        gate.contexts.append(made)
        return made

    async def settle(self) -> None:
        """Wait for all background tasks of the fronts and the workers."""
        for _ in range(3):
            for context in self.gate.contexts:
                await context.finish()
                await asyncio.gather(*context.lasting)
            for workers in (self.gate.workers, self.code_workers):
                await workers.wound_up()
            for shard in (self.chat, self.code):
                await shard.settle()

    async def at_rest(self) -> None:
        """Check that no call is left in either shard or in a front."""
        await self.settle()
        assert self.chat.shard.state.calls == self.code.shard.state.calls == {}
        for context in self.gate.contexts:
            assert held(context.limits) == [0] * 5
            for pool, shard in zip(context.pools, (self.chat, self.code), strict=True):
                assert shard.links[pool.link.process].open_ids == []


async def two_pools(slots: int = 2, settings: ShardSettings | None = None, **more: Mapping[str, Any]) -> TwoPools:
    """Return both pools with a worker each, and one front. `more`: the settings of each pool."""
    gate = await make_gate(slots, settings)
    gate.contexts.clear()
    code = InProcessGate(gate.store, gate.clock, gate.launcher, settings or ShardSettings())
    made = TwoPools(gate, code, ScriptedWorkers(code, gate.clock))
    code.report("coder", slots=slots, model="n")
    made.process(**more)
    return made
