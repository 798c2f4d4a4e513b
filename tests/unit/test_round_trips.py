"""How many requests an admission costs, as botocore sends them, from acceptance to the call of the worker.

Keys and configuration are cached for at most a minute, so they are warmed first; everything else counts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.config import Config

from dispatcher.bootstrap import NoLauncher, RealClock, RealIds, real_random
from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_outcomes import Dispatched, Queued
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Started, WorkEvent, WorkOrder
from dispatcher.old_operations.answer import answer
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.directory import Directory, new_key
from dispatcher.old_operations.submit import Submission, submit
from dispatcher.old_stores.dynamodb.store import DynamoStore, client_config, create_table
from headgate.local.moto.server import make_server
from tests.support.gate.memory_gate import MODEL
from tests.support.gate.story import asked
from tests.support.hang_guard import HANG_S

FAST_PATH_MAX = 2
QUEUED_MAX = 3


class Gate:
    """A gate over DynamoDB that counts its requests."""

    def __init__(self, url: str) -> None:
        client: Any = boto3.client(
            "dynamodb",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=client_config().merge(Config(connect_timeout=HANG_S, read_timeout=HANG_S)),  # a retry is a request
        )
        table = f"headgate-{RealIds().new()}"  # moto's tables are its process's
        create_table(client, table)
        self.sent: list[str] = []
        client.meta.events.register("before-send.dynamodb", lambda request, **_: self.sent.append(request.url))
        clock = RealClock()
        self.store = DynamoStore(client, table, clock=clock, random=real_random())
        directory = Directory(self.store, clock)
        self.workers = CountingWorkers(self)
        self.context = Context(self.store, directory, self.workers, NoLauncher(), clock, RealIds())

    async def ready(self, slots: int) -> str:
        """A tenant's key, its caches warm, and a worker that this process has seen."""
        await self.store.put_tenant(Tenant("a", "a"), expected_version=None)
        key, record = new_key("a", RealIds().secret())
        await self.store.put_key(record)
        alive_until = self.context.clock.now() + 3600
        await self.store.register(Worker("w", "default", "http://w", MODEL, slots, alive_until=alive_until))
        await self.context.directory.tenant_of(key)
        await self.context.store.snapshot("default", "a")
        return key

    async def accept(self, key: str) -> Dispatched | Queued:
        tenant = await self.context.directory.tenant_of(key)
        accepted = await submit(self.context, Submission(tenant, asked(), RealIds().new(), 60.0, False))
        assert isinstance(accepted, Dispatched | Queued)
        return accepted


@dataclass
class CountingWorkers:
    """Counts the requests sent when it is called. It waits for those begun beside the invocation, so they count too."""

    gate: Gate
    counts: list[int] = field(default_factory=list)

    async def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        await self.gate.context.finish()
        self.counts.append(len(self.gate.sent))
        yield Started(5)
        yield Finished("stop", 5, 0)


@pytest.fixture
def gate() -> Iterator[Gate]:
    server = make_server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Gate(f"http://127.0.0.1:{server.port}")
    finally:
        server.shutdown()


def test_the_fast_path_is_one_look_and_one_transaction(gate: Gate) -> None:
    async def story() -> None:
        key = await gate.ready(slots=2)
        gate.sent.clear()
        accepted = await gate.accept(key)
        await gate.context.finish()  # what was begun beside it counts too
        count = len(gate.sent)
        assert isinstance(accepted, Dispatched)
        assert count == FAST_PATH_MAX

    asyncio.run(story())


def test_two_are_sent_until_the_worker_is_called_for_each_request_in_a_row(gate: Gate) -> None:
    """Each dispatch moves the pool's virtual time; writing it must not delay the call of the worker."""

    async def story() -> None:
        key = await gate.ready(slots=2)
        tenant = await gate.context.directory.tenant_of(key)
        for number in range(3):
            submission = Submission(tenant, asked(), f"{number}", 60.0, False)
            gate.sent.clear()
            accepted = await submit(gate.context, submission)
            assert isinstance(accepted, Dispatched)
            async for _ in answer(gate.context, submission, accepted):
                pass
            await gate.context.finish()
        assert gate.workers.counts == [FAST_PATH_MAX] * 3
        assert (await gate.store.snapshot("default", "a")).pool.virtual_time > 0  # written all the same

    asyncio.run(story())


def test_queueing_is_at_most_three(gate: Gate) -> None:
    async def story() -> None:
        key = await gate.ready(slots=1)
        await gate.accept(key)
        await gate.context.finish()
        gate.sent.clear()
        accepted = await gate.accept(key)
        await gate.context.finish()  # what was begun beside it counts too
        count = len(gate.sent)
        assert isinstance(accepted, Queued)
        assert count <= QUEUED_MAX

    asyncio.run(story())


def test_losing_the_race_for_the_slot_is_three(gate: Gate) -> None:
    """Two dispatchers see the same free slot: the loser queues, at the price of its lost transaction."""

    async def story() -> None:
        key = await gate.ready(slots=1)
        snapshot = gate.store.snapshot
        stale = await snapshot("default", "a")
        await gate.accept(key)
        await gate.context.finish()

        async def as_it_was(pool: str, queue: str) -> Any:
            await snapshot(pool, queue)  # counted as it would be
            return stale

        gate.store.snapshot = as_it_was  # type: ignore[method-assign]
        gate.sent.clear()
        accepted = await gate.accept(key)
        await gate.context.finish()
        count = len(gate.sent)
        gate.store.snapshot = snapshot  # type: ignore[method-assign]
        assert isinstance(accepted, Queued)
        assert count == QUEUED_MAX

    asyncio.run(story())
