"""What the store's tests say again and again: a clock that stands still, and invocations taken through their life."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation, Result, Slot, State, dispatched, ended
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_ports import Store
from dispatcher.policies.clocks import Share, debit, lift, settlement

POOL = "p"
START = 1_000_000.0


class FakeClock:
    def __init__(self, start: float = START) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def worker(worker_id: str = "w", slots: int = 2, **more: Any) -> Worker:
    fields = {"pool": POOL, "url": f"http://{worker_id}", "model": "m", "alive_until": START + 1000, **more}
    return Worker(id=worker_id, slots=slots, **fields)


def invocation(invocation_id: str, tenant: str = "a", **more: Any) -> Invocation:
    fields = {
        "queue": tenant,
        "pool": POOL,
        "model": "m",
        "fingerprint": f"digest of {invocation_id}",
        "arrived_at": START,
        "deadline_at": START + 100,
        "estimate": 10.0,
        "config_version": 1,
        **more,
    }
    return Invocation(tenant=tenant, id=invocation_id, **fields)


class World:
    """A store, a clock, and every tenant on the same terms."""

    def __init__(self, store: Store, clock: FakeClock, share: Share | None = None) -> None:
        self.store = store
        self.clock = clock
        self.share = share or Share(weight=2.0, rate_per_s=10.0, burst=1000.0)

    async def admit(self, new: Invocation, slot: Slot) -> tuple[Written, Invocation]:
        snapshot = await self.store.snapshot(new.pool, new.queue)
        now = self.clock.now()
        taken = debit(snapshot.queue.clocks, self.share, new.estimate, now, snapshot.pool.virtual_time)
        running = dispatched(new, slot, taken.charge, now)
        return await self.store.admit(running, taken, now), running

    async def admitted(self, new: Invocation, slot: Slot) -> Invocation:
        written, running = await self.admit(new, slot)
        assert written is Written.DONE
        return running

    async def enqueue(self, new: Invocation, waiting_max: int = 100) -> Written:
        snapshot = await self.store.snapshot(new.pool, new.queue)
        step = None if snapshot.queue.waiting else lift(snapshot.queue.clocks, snapshot.pool.virtual_time)
        return await self.store.enqueue(new, step, waiting_max)

    async def enqueued(self, *new: Invocation) -> None:
        for one in new:
            assert await self.enqueue(one) is Written.DONE

    async def dispatch(self, queued: Invocation, slot: Slot) -> tuple[Written, Invocation]:
        snapshot = await self.store.snapshot(queued.pool, queued.queue)
        now = self.clock.now()
        taken = debit(snapshot.queue.clocks, self.share, queued.estimate, now, snapshot.pool.virtual_time)
        running = dispatched(queued, slot, taken.charge, now)
        return await self.store.dispatch(running, taken, now), running

    async def dispatched(self, queued: Invocation, slot: Slot) -> Invocation:
        written, running = await self.dispatch(queued, slot)
        assert written is Written.DONE
        return running

    async def settle(self, running: Invocation, served: float = 8.0, answer: str = "answer") -> Settled:
        assert running.charge is not None
        over = ended(
            running,
            State.DONE,
            self.clock.now(),
            result=Result(200, answer),
            input_tokens=2,
            output_tokens=3,
            served=served,
        )
        return await self.store.settle(over, *settlement(running.charge, served))

    async def requeue(self, running: Invocation) -> Settled:
        assert running.charge is not None
        return await self.store.requeue(running, *settlement(running.charge, 0.0))

    async def drop(self, queued: Invocation, state: State = State.EXPIRED) -> Settled:
        return await self.store.drop(ended(queued, state, self.clock.now(), result=Result(504, "late")))

    async def queue(self, name: str = "a") -> Any:
        return (await self.store.snapshot(POOL, name)).queue

    async def leases(self) -> dict[tuple[str, int], str]:
        """(worker, slot) -> execution."""
        workers = await self.store.workers(POOL)
        return {(one.id, number): lease.execution for one in workers for number, lease in one.leases.items()}

    async def waiting_names(self, limit: int = 100) -> list[str]:
        return [queue.name for queue in await self.store.waiting_queues(POOL, self.clock.now(), limit)]


def later(one: Invocation, seconds: float) -> Invocation:
    return replace(one, arrived_at=one.arrived_at + seconds)
