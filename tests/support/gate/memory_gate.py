"""A gate over the memory store with scripted workers, its HTTP face, and what must hold when all is over."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation, State
from dispatcher.model.tenants import Tenant
from dispatcher.old_operations.context import Context, GateSettings
from dispatcher.old_operations.directory import Directory, new_key
from dispatcher.old_stores.memory.store import MemoryStore
from dispatcher.policies.clocks import Share
from functions.http_api.app import make_app
from headgate.simulator.virtual_time import LoopClock
from tests.support.asgi import Caller
from tests.support.gate.worker_client import ScriptedWorkers

POOL = "default"
MODEL = "m"
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


class CountingIds:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"id-{next(self._numbers)}"

    def secret(self) -> str:
        return f"{next(self._numbers):012d}" + "s" * 32


@dataclass
class FakeLauncher:
    launched: list[tuple[str, str, int]] = field(default_factory=list)

    async def launch(self, tenant: str, invocation_id: str, attempt: int) -> None:
        self.launched.append((tenant, invocation_id, attempt))


@dataclass
class Gate:
    clock: LoopClock
    store: MemoryStore
    workers: ScriptedWorkers
    launcher: FakeLauncher
    ids: CountingIds
    keys: dict[str, str] = field(default_factory=dict)
    contexts: list[Context] = field(default_factory=list)

    @property
    def context(self) -> Context:
        return self.contexts[0]

    def process(self, order: str = "bwfq", **settings: Any) -> Context:
        """Start another gate process: it shares the table and the workers, nothing else."""
        context = Context(
            store=self.store,
            directory=Directory(self.store, self.clock, order),
            workers=self.workers,
            launcher=self.launcher,
            clock=self.clock,
            ids=self.ids,
            settings=GateSettings(**settings),
        )
        self.contexts.append(context)
        return context

    def caller(self, tenant: str | None = "a", context: Context | None = None) -> Caller:
        app = make_app()
        app.state.context = context or self.context
        return Caller(app, None if tenant is None else self.keys[tenant])

    async def add_tenant(self, name: str, share: Share | None = None, **limits: Any) -> Tenant:
        tenant = Tenant(name, name, share=share or Share(), **limits)
        await self.store.put_tenant(tenant, expected_version=None)
        self.keys[name], record = new_key(name, self.ids.secret())
        await self.store.put_key(record)
        return tenant

    async def add_worker(self, name: str = "w", slots: int = 2, alive_s: float = 1e6, **more: Any) -> Worker:
        fields: dict[str, Any] = {"model": MODEL, "alive_until": self.clock.now() + alive_s, **more}
        seated = await self.store.register(Worker(name, POOL, f"http://{name}", slots=slots, **fields))
        assert seated is not None
        return seated

    async def worker(self) -> Worker:
        """Return the worker in the first seat."""
        return (await self.store.workers(POOL))[0]

    async def heartbeat(self, worker: Worker, **changes: Any) -> Worker:
        """Write the worker's heartbeat: the executions that it runs, and the test's `changes`."""
        live = frozenset(name for name, on in self.workers.live.items() if on == worker.id)
        stored = await self.store.heartbeat(replace(worker, **{"live": live, **changes}))
        assert stored is not None
        return stored

    async def invocation(self, tenant: str, invocation_id: str) -> Invocation:
        found = await self.store.get(tenant, invocation_id)
        assert found is not None
        return found

    async def ended(self, tenant: str, invocation_id: str, state: State) -> Invocation:
        found = await self.invocation(tenant, invocation_id)
        assert found.state is state
        return found

    async def spent(self, tenant: str) -> float:
        return (await self.store.snapshot(POOL, tenant)).queue.spent

    async def leases(self) -> dict[tuple[str, int], str]:
        """Return {(worker, slot): execution}."""
        workers = await self.store.workers(POOL)
        return {(each.id, number): lease.execution for each in workers for number, lease in each.leases.items()}

    async def quiet(self) -> None:
        """Wait for all background tasks of the gate processes and the workers."""
        for _ in range(3):
            for context in self.contexts:
                await context.finish()
            await self.workers.wound_up()
            await asyncio.sleep(0)

    async def at_rest(self) -> None:
        """Check that no slot is taken, nothing waits, nothing is reserved and nothing runs."""
        await self.quiet()
        assert await self.leases() == {}
        assert self.workers.live == {}
        for name in [*self.keys, "everybody"]:
            queue = (await self.store.snapshot(POOL, name)).queue
            assert (queue.waiting, queue.reserved) == (0, 0.0), queue
        assert all(context.wakeups.waiting == 0 for context in self.contexts)


async def make_gate(slots: int = 2) -> Gate:
    """Return a gate with the tenants a and b and one worker."""
    clock = LoopClock()
    store = MemoryStore(clock)
    gate = Gate(clock, store, ScriptedWorkers(store, clock), FakeLauncher(), CountingIds())
    gate.process()
    await gate.add_tenant("a")
    await gate.add_tenant("b")
    await gate.add_worker(slots=slots)
    return gate
