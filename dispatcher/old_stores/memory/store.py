"""The store in memory, with the table's conditions and outcomes: for simulations, tests and single processes.

Every method counts as one request, applies atomically (also between threads), and passes a `Faults` hook before and
after: an error raised before means that nothing was written, one raised after that the reply was lost. Deterministic:
what happens depends on the calls, the clock and the hook alone. Bounded: ended invocations go after `retention_s`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from dispatcher.model.old_fleet import Lease, Pool, Snapshot, WaitingQueue, Worker
from dispatcher.model.old_invocation import Invocation, Slot
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.old_ports import Clock
from dispatcher.old_stores.limits import RETENTION_S
from dispatcher.old_stores.memory.invocations import MemoryInvocations
from dispatcher.old_stores.memory.tenants import MemoryTenants
from dispatcher.old_stores.memory.workers import MemorySeats
from dispatcher.old_stores.numbers import virtual_time as rounded_down
from dispatcher.policies.clocks import Debit, Step

T = TypeVar("T")

WRITES = frozenset(
    [
        "put_tenant",
        "delete_tenant",
        "put_key",
        "delete_key",
        "admit",
        "enqueue",
        "dispatch",
        "note_pool",
        "settle",
        "requeue",
        "drop",
        "detach",
        "register",
        "heartbeat",
        "leave",
        "free_slot",
    ]
)
"""Names of the methods that write, as a Faults hook sees them."""


class Faults(Protocol):
    """What goes wrong, and when. Either method may raise StoreUnavailable, or wait on the clock."""

    async def before(self, operation: str) -> None:
        """The request is under way; nothing is applied yet."""
        ...

    async def after(self, operation: str) -> None:
        """It is applied; the reply is under way."""
        ...


class MemoryStore:
    def __init__(self, clock: Clock, faults: Faults | None = None, retention_s: float = RETENTION_S) -> None:
        self.requests: Counter[str] = Counter()
        """Requests so far, by method."""
        self.faults = faults
        self._clock = clock
        self._lock = threading.Lock()
        self._tenants = MemoryTenants()
        self._seats = MemorySeats()
        self._invocations = MemoryInvocations(self._seats, retention_s)
        self._pools: dict[str, Pool] = {}

    async def _request(self, operation: str, apply: Callable[[], T]) -> T:
        if self.faults is not None:
            await self.faults.before(operation)
        with self._lock:
            self.requests[operation] += 1
            reply = apply()
        if self.faults is not None:
            await self.faults.after(operation)
        return reply

    # ── Tenants ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def find_key(self, prefix: str) -> KeyRecord | None:
        return await self._request("find_key", lambda: self._tenants.find_key(prefix, self._clock.now()))

    async def get_tenant(self, name: str) -> Tenant | None:
        return await self._request("get_tenant", partial(self._tenants.get, name))

    async def put_tenant(self, tenant: Tenant, *, expected_version: int | None) -> Written:
        return await self._request("put_tenant", partial(self._tenants.put, tenant, expected_version))

    async def list_tenants(self) -> Sequence[Tenant]:
        return await self._request("list_tenants", self._tenants.all)

    async def delete_tenant(self, name: str) -> None:
        await self._request("delete_tenant", partial(self._tenants.delete, name))

    async def put_key(self, key: KeyRecord) -> None:
        await self._request("put_key", partial(self._tenants.put_key, key))

    async def delete_key(self, prefix: str) -> None:
        await self._request("delete_key", partial(self._tenants.delete_key, prefix))

    async def keys_of(self, tenant: str) -> Sequence[KeyRecord]:
        return await self._request("keys_of", lambda: self._tenants.keys_of(tenant, self._clock.now()))

    # ── Invocations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def snapshot(self, pool: str, queue: str) -> Snapshot:
        return await self._request("snapshot", lambda: self._snapshot(pool, queue))

    async def admit(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        admit = self._invocations.admit
        return await self._request("admit", lambda: admit(invocation, debit, now, self._clock.now()))

    async def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int) -> Written:
        enqueue = self._invocations.enqueue
        return await self._request("enqueue", lambda: enqueue(invocation, lift, waiting_max, self._clock.now()))

    async def waiting_queues(self, pool: str, now: float, limit: int) -> Sequence[WaitingQueue]:
        return await self._request("waiting_queues", partial(self._invocations.waiting_queues, pool, now, limit))

    async def head_of(self, queue: str) -> Invocation | None:
        return await self._request("head_of", partial(self._invocations.head_of, queue))

    async def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        return await self._request("dispatch", partial(self._invocations.dispatch, invocation, debit, now))

    async def note_pool(
        self,
        pool: str,
        *,
        virtual_time: float | None = None,
        backlogged: bool | None = None,
        rate_scale: float | None = None,
    ) -> None:
        await self._request("note_pool", partial(self._note, pool, virtual_time, backlogged, rate_scale))

    async def get(self, tenant: str, invocation_id: str) -> Invocation | None:
        found = await self._request("get", lambda: self._get([(tenant, invocation_id)]))
        return found[0] if found else None

    async def get_many(self, ids: Sequence[tuple[str, str]]) -> Sequence[Invocation]:
        return await self._request("get_many", lambda: self._get(ids))

    async def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        return await self._request("settle", partial(self._invocations.settle, ended, tat, vft))

    async def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        return await self._request("requeue", partial(self._invocations.requeue, invocation, tat, vft))

    async def drop(self, ended: Invocation) -> Settled:
        return await self._request("drop", partial(self._invocations.drop, ended))

    async def detach(self, tenant: str, invocation_id: str) -> Written:
        return await self._request("detach", partial(self._invocations.detach, (tenant, invocation_id)))

    async def overdue(self, pool: str, now: float, limit: int) -> Sequence[Invocation]:
        return await self._request("overdue", partial(self._invocations.overdue, pool, now, limit))

    # ── Workers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, worker: Worker) -> Worker | None:
        return await self._request("register", lambda: self._seats.register(worker, self._clock.now()))

    async def heartbeat(self, worker: Worker) -> Worker | None:
        return await self._request("heartbeat", partial(self._seats.heartbeat, worker))

    async def leave(self, worker: Worker) -> None:
        await self._request("leave", partial(self._seats.leave, worker))

    async def workers(self, pool: str) -> Sequence[Worker]:
        return await self._request("workers", partial(self._seats.workers, pool))

    async def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        return await self._request("free_slot", partial(self._seats.free_slot, worker, slot, lease))

    # ── Parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _snapshot(self, pool: str, queue: str) -> Snapshot:
        known = self._pools.get(pool) or Pool(pool)
        return Snapshot(known, self._invocations.queue(queue), self._seats.workers(pool))

    def _get(self, ids: Sequence[tuple[str, str]]) -> list[Invocation]:
        return self._invocations.get_many(ids, self._clock.now())

    def _note(self, name: str, time: float | None, backlogged: bool | None, rate_scale: float | None) -> None:
        old = self._pools.get(name) or Pool(name)
        raised = old.virtual_time if time is None else max(old.virtual_time, float(rounded_down(time)))
        self._pools[name] = replace(
            old,
            virtual_time=raised,
            backlogged=old.backlogged if backlogged is None else backlogged,
            rate_scale=old.rate_scale if rate_scale is None else rate_scale,
        )
