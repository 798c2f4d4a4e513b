"""A gate over the memory store with scripted workers, its HTTP face, and what must hold when all is over."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, fields
from typing import Any

from dispatcher.model.facts import Ended
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context, GateSettings
from dispatcher.operations.directory import new_key
from dispatcher.operations.limits import Limits, LimitSettings
from dispatcher.operations.pools import Pool, Pools, PoolSettings
from dispatcher.policies.clocks import Share
from dispatcher.shard.settings import ShardSettings
from dispatcher.stores.memory import MemoryStore
from functions.http_api.app import make_app
from tests.support.asgi import Caller
from tests.support.gate.in_process import InProcessGate, InProcessLink
from tests.support.gate.worker_client import ScriptedWorkers
from tests.support.virtual_time import LoopClock

POOL = "default"
MODEL = "m"
POOL_FIELDS = {each.name for each in fields(PoolSettings)}
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
            Pools(Pool(link, self.clock, PoolSettings(**own))),
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
            assert (dict(link.waiting), link.open_ids, context.durable_calls) == ({}, [], {})
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
