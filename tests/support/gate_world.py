"""A whole gate in one process and in virtual time: memory store, scripted workers, as many dispatchers as wanted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from dispatcher.model.errors import AnsweredError, WorkerFailed
from dispatcher.model.fleet import Worker
from dispatcher.model.invocation import Invocation
from dispatcher.model.outcomes import Known
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused
from dispatcher.operations.answer import answer
from dispatcher.operations.context import Context, GateSettings
from dispatcher.operations.directory import Directory, new_key
from dispatcher.operations.execute import Collected, Render
from dispatcher.operations.submit import Submission, submit
from dispatcher.policies.clocks import Share
from dispatcher.stores.memory.store import MemoryStore
from tests.support.virtual_time import LoopClock

MODEL = "m"
TOKEN_S = 0.1


class CountingIds:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"id-{next(self._numbers)}"

    def secret(self) -> str:
        return f"{next(self._numbers):012d}" + "s" * 32


@dataclass
class FakeWorkers:
    """ports.WorkerClient: max_tokens tokens, one each TOKEN_S. `script`: what goes wrong, attempt by attempt."""

    script: list[str] = field(default_factory=list)
    """`fail`: before any token; `break`: after two; `refuse`: 400; `full`: 503. When it is empty all is well."""
    orders: list[tuple[str, WorkOrder]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    most_live: int = 0

    async def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        self.orders.append((worker.id, order))
        act = self.script.pop(0) if self.script else ""
        if act == "fail":
            raise WorkerFailed()
        if act in ("refuse", "full"):
            yield WorkRefused(400 if act == "refuse" else 503, "context_length_exceeded", "Too long.")
            return
        self.live.add(order.execution)
        self.most_live = max(self.most_live, len(self.live))
        try:
            yield Started(10)
            for number in range(1, order.max_tokens + 1):
                await asyncio.sleep(TOKEN_S)
                yield Token("x", number)
                if act == "break" and number == 2:
                    raise WorkerFailed()
        except (GeneratorExit, asyncio.CancelledError):
            self.closed.append(order.execution)
            raise
        finally:
            self.live.discard(order.execution)
        yield Finished("length", 10, order.max_tokens)


@dataclass
class FakeLauncher:
    launched: list[tuple[str, str, int]] = field(default_factory=list)

    async def launch(self, tenant: str, invocation_id: str, attempt: int) -> None:
        self.launched.append((tenant, invocation_id, attempt))


@dataclass
class World:
    clock: LoopClock
    store: MemoryStore
    workers: FakeWorkers
    launcher: FakeLauncher
    ids: CountingIds
    keys: dict[str, str] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def dispatcher(self, order: str = "bwfq", **settings: float) -> Context:
        """Another dispatcher process: it shares the table, and nothing else."""
        directory = Directory(self.store, self.clock, order)
        return Context(
            store=self.store,
            directory=directory,
            workers=self.workers,
            launcher=self.launcher,
            clock=self.clock,
            ids=self.ids,
            settings=GateSettings(**settings),  # type: ignore[arg-type]
        )

    async def add_tenant(self, name: str, share: Share | None = None, **limits: object) -> Tenant:
        tenant = Tenant(name, name, share=share or Share(), **limits)  # type: ignore[arg-type]
        await self.store.put_tenant(tenant, expected_version=None)
        self.keys[name], record = new_key(name, self.ids.secret())
        await self.store.put_key(record)
        self.tenants[name] = tenant
        return tenant

    async def add_worker(self, name: str = "w", slots: int = 1, alive_s: float = 1e6) -> Worker:
        worker = Worker(name, "default", f"http://{name}", MODEL, slots, alive_until=self.clock.now() + alive_s)
        seated = await self.store.register(worker)
        assert seated is not None
        return seated

    def submission(self, tenant: Tenant | str, *, known_as: str | None = None, **fields: Any) -> Submission:
        asked: dict[str, Any] = {"max_tokens": 5}
        asked |= {name: fields.pop(name) for name in ("max_tokens", "prompt") if name in fields}
        return Submission(
            self.tenants[tenant] if isinstance(tenant, str) else tenant,
            request(**asked),
            known_as or self.ids.new(),
            deadline_s=float(fields.pop("deadline_s", 300.0)),
            keep_body=bool(fields.pop("keep_body", False)),
            keep_answer=bool(fields.pop("keep_answer", False)),
            detached=bool(fields.pop("detached", False)),
        )

    async def ask(
        self, context: Context, submission: Submission, render: Render | None = None
    ) -> Collected | AnsweredError:
        """Submit and follow to the end. An error is returned, not raised."""
        collected = Collected()
        try:
            accepted = await submit(context, submission)
            assert not isinstance(accepted, Known)
            async for event in answer(context, submission, accepted, render):
                collected.note(event)
        except AnsweredError as error:
            return error
        return collected

    async def invocation(self, submission: Submission) -> Invocation:
        found = await self.store.get(submission.tenant.name, submission.id)
        assert found is not None
        return found

    async def at_rest(self, *names: str) -> None:
        """No slot taken, nothing waiting, nothing reserved."""
        for name in names or self.tenants:
            snapshot = await self.store.snapshot("default", name)
            assert snapshot.queue.waiting == 0
            assert snapshot.queue.reserved == 0.0
            assert all(not worker.leases for worker in snapshot.workers)


def request(prompt: str = "hello", max_tokens: int | None = 5, model: str = MODEL) -> Request:
    return Request(model, False, prompt, None, max_tokens, 1.0, None, ())


def make_world() -> World:
    clock = LoopClock()
    return World(clock, MemoryStore(clock), FakeWorkers(), FakeLauncher(), CountingIds())
