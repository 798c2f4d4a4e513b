"""A gate over the memory store with scripted workers, its HTTP face, and what must hold when all is over.

It has one pool (Gate), or two behind one front (TwoPools).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from dispatcher.model.batches import UnknownFile
from dispatcher.model.commands import Offer
from dispatcher.model.facts import Ended
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.operations.context import Context
from dispatcher.operations.directory import new_key
from dispatcher.operations.limits import GateSettings, Limits, LimitSettings
from dispatcher.operations.pools import Pool, Pools
from dispatcher.policies.clocks import Share
from dispatcher.ports import AttemptEvents, RunningAttempt
from dispatcher.shard.settings import ShardSettings
from functions.http_api.app import make_app
from tests.support.asgi import Caller
from tests.support.world.in_process import InProcessGate, InProcessLink
from tests.support.world.memory_store import MemoryStore
from tests.support.world.virtual_time import LoopClock, VirtualTimeLoop
from tests.support.world.worker_client import ScriptedWorkers

READ_BYTES = 1000


class MemoryFiles:
    """dispatcher.model.batches.FileStore."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> int:
        content = b"".join([part async for part in parts])
        await asyncio.sleep(0)
        self.blobs[name] = content
        return len(content)

    async def read(self, name: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        if name not in self.blobs:
            raise UnknownFile()
        content = self.blobs[name]
        for at in range(start, len(content), READ_BYTES):
            await asyncio.sleep(0)
            yield content[at : at + READ_BYTES]

    async def delete(self, name: str) -> None:
        self.blobs.pop(name, None)

    async def delete_older(self, age_s: float) -> None:
        return None


POOL = "default"
MODEL = "m"
POOL_FIELDS = {each.name for each in fields(Pool)}
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


class CountingIds:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"id{next(self._numbers):010d}"

    def secret(self) -> str:
        return f"{next(self._numbers):012d}" + "s" * 32


@dataclass
class FakeLauncher:
    launched: list[tuple[str, int]] = field(default_factory=list)

    async def launch(self, invocation_id: str, attempt: int) -> None:
        self.launched.append((invocation_id, attempt))


@dataclass
class Gate:
    clock: LoopClock
    store: MemoryStore
    shard: InProcessGate
    workers: ScriptedWorkers
    launcher: FakeLauncher
    ids: CountingIds
    keys: dict[str, str] = field(default_factory=dict)
    contexts: list[Context] = field(default_factory=list)

    @property
    def context(self) -> Context:
        return self.contexts[0]

    @property
    def pool(self) -> Pool:
        """The only pool of the first front."""
        return self.context.pools.first

    def process(self, limits: LimitSettings | None = None, **settings: Any) -> Context:
        """Start another front: it shares the shard, the table and the workers, nothing else."""
        link = self.shard.link(f"p{len(self.contexts)}")
        own = {name: settings.pop(name) for name in POOL_FIELDS & set(settings)}
        context = Context(
            Pools(Pool(link, self.clock, **own)),
            store=self.store,
            workers=self.workers,
            launcher=self.launcher,
            clock=self.clock,
            ids=self.ids,
            settings=GateSettings(**settings),
            limit_settings=limits or LimitSettings(),
        )
        self.contexts.append(context)
        return context

    def link(self, context: Context | None = None) -> InProcessLink:
        return self.shard.links[(context or self.context).pools.first.link.process]

    def caller(self, tenant: str | None = "a", context: Context | None = None) -> Caller:
        app = make_app()
        app.state.context = context or self.context
        return Caller(app, None if tenant is None else self.keys[tenant])

    async def add_tenant(self, name: str, share: Share | None = None, **limits: Any) -> Tenant:
        tenant = Tenant(name, share=share or Share(), **limits)
        await self.store.put_tenant(tenant, expected_version=None)
        self.keys[name], record = new_key(name, self.ids.secret())
        await self.store.put_key(record)
        return tenant

    def add_worker(self, name: str = "w", slots: int = 2, **more: Any) -> None:
        self.shard.report(name, slots=slots, **more)

    async def item(self, tenant: str, key: str) -> Invocation:
        found = await self.store.find(tenant, key)
        assert found is not None
        return found

    async def ended(self, tenant: str, key: str, outcome: str) -> StoredAnswer:
        """Return the answer under a key, which must have this outcome."""
        answer = (await self.item(tenant, key)).answer
        assert answer is not None
        assert answer.outcome == outcome
        return answer

    def ends(self, outcome: str) -> list[Ended]:
        return [fact for fact in self.shard.facts if isinstance(fact, Ended) and fact.outcome == outcome]

    def spent(self, tenant: str) -> float:
        return sum(row.service for row in self.shard.shard.usage_rows() if row.tenant == tenant)

    async def quiet(self) -> None:
        """Wait for all background tasks of the fronts and the workers."""
        for _ in range(3):
            for context in self.contexts:
                await context.finish()
                await asyncio.gather(*context.lasting)
            await self.workers.wound_up()
            await self.shard.settle()
            await asyncio.sleep(0)

    async def at_rest(self) -> None:
        """Check that no call is left, at the gate, at a worker, or in a front."""
        await self.quiet()
        assert self.shard.shard.state.calls == {}
        assert self.workers.live == {}
        for context in self.contexts:
            link = self.link(context)
            assert (dict(link.held), link.open_ids, context.durable_calls) == ({}, [], {})
            assert held(context.limits) == [0] * 5


def held(limits: Limits) -> list[int]:
    """Return what requests hold of a front's limits: open requests, waiting items, bytes and tokens, and keys."""
    budgets = (limits.requests, limits.waiting_items, limits.waiting_bytes, limits.waiting_tokens, limits.keys)
    return [budget.total for budget in budgets]


async def make_gate(slots: int = 2, settings: ShardSettings | None = None) -> Gate:
    """Return a gate with the tenants a and b and one worker."""
    clock = LoopClock()
    store, launcher = MemoryStore(clock), FakeLauncher()
    shard = InProcessGate(store, clock, launcher, settings or ShardSettings())
    gate = Gate(clock, store, shard, ScriptedWorkers(shard, clock), launcher, CountingIds())
    gate.process()
    await gate.add_tenant("a")
    await gate.add_tenant("b")
    gate.add_worker(slots=slots)
    return gate


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, type[VirtualTimeLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """Two tenants and one worker of two slots. After the test no slot, reservation or waiting request may be left."""
    made = await make_gate()
    yield made
    await made.at_rest()


MODELS = {"chat": "m", "code": "n"}


@dataclass
class RoutedWorkers:
    """ports.WorkerClient: each order goes to the workers of its model."""

    by_model: Mapping[str, ScriptedWorkers]

    def execute(self, offer: Offer, order: WorkOrder, events: AttemptEvents) -> RunningAttempt:
        return self.by_model[order.terms.model].execute(offer, order, events)

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
                name,
                models=frozenset(filter(None, [models.get(name)])),
                **settings.get(name, {}),
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
