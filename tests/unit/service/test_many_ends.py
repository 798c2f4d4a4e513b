"""Many durable calls end or lose their attempt in one entry. A store takes a limited number of requests at a time."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.commands import Command, Leave, Tick
from dispatcher.model.errors import StoreUnavailable
from dispatcher.service.gate.replica import KEEP_OUTCOMES_S, Replica
from dispatcher.stores.dynamodb.requests import PENDING_PER_THREAD_MAX
from dispatcher.stores.dynamodb.store import THREADS
from tests.support.world.memory_store import MemoryStore
from tests.support.world.processes import SHARD, World, accept, report

PENDING_MAX = THREADS * PENDING_PER_THREAD_MAX
REQUEST_S = 0.005


class Threads:
    """The threads of a DynamoDB store: each serves one request at a time. Further requests wait, a limited number."""

    def __init__(self) -> None:
        self.pending = 0
        self._free = asyncio.Semaphore(THREADS)

    async def before(self, operation: str) -> None:
        if self.pending >= PENDING_MAX:
            raise StoreUnavailable("Too many requests are waiting for the tenant store.")
        self.pending += 1
        async with self._free:
            await asyncio.sleep(REQUEST_S)

    async def after(self, operation: str) -> None:
        self.pending -= 1


async def accepted(world: World, calls: int, *, slots: int) -> Replica:
    """Return a replica that accepted durable calls for a worker."""
    store = MemoryStore(world.clock, Threads(), world.data)
    replica = Replica(store.log(SHARD), world.settings, world.clock, "one", answers=store)
    now = world.clock.now()
    accepts = [accept(f"one-{n}", "one", now, durable=True, waiting_max=calls) for n in range(calls)]
    await replica.commit([report("w", slots), *accepts])
    assert len(replica.shard.state.workers["w"].running) == slots
    return replica


@pytest.mark.parametrize("last", [Leave("w"), Tick()], ids=["lost", "expired"])
async def test_an_entry_asks_for_no_more_answers_at_once_than_the_store_takes(world: World, last: Command) -> None:
    """Otherwise the entry could never be written, and with it no other: the shard stood still."""
    replica = await accepted(world, PENDING_MAX + 100, slots=PENDING_MAX + 100)
    began = world.clock.monotonic()
    if isinstance(last, Tick):
        await replica.commit([Leave("w")])
        await asyncio.sleep(400)
    await replica.commit([last])
    assert not any(call.worker for call in replica.shard.state.calls.values())
    assert world.clock.monotonic() - began < 401


async def test_calls_that_expire_together_hold_up_the_others_for_a_fifth_of_a_second(world: World) -> None:
    """At most DUE_MAX of them are in an entry, and other commands come between the entries."""
    replica = await accepted(world, 5000, slots=0)
    await asyncio.sleep(400)
    while replica.shard.state.calls:
        began = world.clock.monotonic()
        await replica.commit([Tick()])
        assert world.clock.monotonic() - began < KEEP_OUTCOMES_S / 5
