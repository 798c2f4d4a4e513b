"""Many at once: each runner admits, queues, dispatches and settles as it can, and tallies what was acknowledged.

As a program (`python -m tests.conformance.store_load URL TABLE SEED ROUNDS`) it prints its tally as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation, Slot
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_ports import Store
from tests.conformance.store_world import POOL, FakeClock, World, invocation, worker

TENANTS = ["a", "b", "c"]
WORKERS = [worker("w0", slots=3, alive_until=2e9), worker("w1", slots=2, alive_until=2e9)]
QUEUE_MAX = 4


@dataclass
class Tally:
    """What the store acknowledged to one runner."""

    started: list[str] = field(default_factory=list)
    """Executions, dispatched or admitted."""
    queued: Counter[str] = field(default_factory=Counter)
    """By tenant; less what left the queue."""
    running: dict[str, float] = field(default_factory=dict)
    """Execution -> estimate, for those never settled."""
    spent: dict[str, float] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)


class Runner:
    def __init__(self, store: Store, name: str, random: Random) -> None:
        self._world = World(store, FakeClock())
        self._name = name
        self._random = random
        self._mine: list[Invocation] = []
        self.tally = Tally()

    async def run(self, rounds: int) -> Tally:
        for number in range(rounds):
            await self._arrive(number)
            await self._drain()
            if self._mine and self._random.random() < 0.7:
                await self._settle(self._mine.pop(self._random.randrange(len(self._mine))))
        return self.tally

    async def _arrive(self, number: int) -> None:
        tenant = self._random.choice(TENANTS)
        new = invocation(f"{self._name}-{number}", tenant, estimate=self._random.choice([0.1, 3.7, 12.0]), body="q")
        slot = self._free_slot(await self._world.store.workers(POOL))
        if slot is not None:
            written, running = await self._world.admit(new, slot)
            self.tally.outcomes[f"admit {written.value}"] += 1
            if written is Written.DONE:
                self._began(running)
                return
        written = await self._world.enqueue(new, QUEUE_MAX)
        self.tally.outcomes[f"enqueue {written.value}"] += 1
        self.tally.queued[tenant] += written is Written.DONE

    async def _drain(self) -> None:
        lines = await self._world.store.waiting_queues(POOL, self._world.clock.now(), 3)
        slot = self._free_slot(await self._world.store.workers(POOL))
        head = await self._world.store.head_of(self._random.choice(lines).name) if lines else None
        if slot is None or head is None:
            return
        if self._random.random() < 0.2:
            dropped = await self._world.drop(head)
            self.tally.outcomes[f"drop {dropped.value}"] += 1
            self.tally.queued[head.tenant] -= dropped is Settled.SETTLED
            return
        written, running = await self._world.dispatch(head, slot)
        self.tally.outcomes[f"dispatch {written.value}"] += 1
        if written is Written.DONE:
            self.tally.queued[head.tenant] -= 1
            self._began(running)

    async def _settle(self, running: Invocation) -> None:
        if self._random.random() < 0.3:
            ended = await self._world.requeue(running)
            self.tally.queued[running.tenant] += ended is Settled.SETTLED
        else:
            served = self._random.choice([0.2, 5.5])
            ended = await self._world.settle(running, served=served)
            if ended is Settled.SETTLED:
                self.tally.spent[running.tenant] = self.tally.spent.get(running.tenant, 0.0) + served
        self.tally.outcomes[f"end {ended.value}"] += 1
        del self.tally.running[execution(running)]

    def _began(self, running: Invocation) -> None:
        self._mine.append(running)
        self.tally.started.append(execution(running))
        self.tally.running[execution(running)] = running.estimate

    def _free_slot(self, workers: Any) -> Slot | None:
        free = [Slot(one.id, number) for one in workers for number in one.free_slots()]
        return self._random.choice(free) if free else None


def execution(running: Invocation) -> str:
    return f"{running.tenant}/{running.id}#{running.attempt}"


async def seat(store: Store) -> list[Worker | None]:
    return [await store.register(one) for one in WORKERS]


class _RealClock(FakeClock):
    """Retries pause in earnest; the time that conditions see stands still."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def main() -> None:
    from dispatcher.old_stores.dynamodb.store import DynamoStore
    from tests.conformance.store_backends import make_client

    url, table, seed, rounds = sys.argv[1:]
    store = DynamoStore(make_client(url), table, clock=_RealClock(), random=Random(f"{table}/{seed}"), threads=2)
    sys.stdin.readline()  # all start together
    tally = asyncio.run(Runner(store, seed, Random(seed)).run(int(rounds)))
    sys.stdout.write(json.dumps(vars(tally)))


if __name__ == "__main__":
    main()
