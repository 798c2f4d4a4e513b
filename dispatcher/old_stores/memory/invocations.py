"""Invocations and queues in memory: each method is one atomic statement with its conditions first, its effects last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from dispatcher.model.old_fleet import Lease, TenantQueue, WaitingQueue, Worker
from dispatcher.model.old_invocation import Invocation, State, retried
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_stores.limits import checked_body, fitting
from dispatcher.old_stores.memory.queues import InvocationKey, QueueRecord, WaitingIndex
from dispatcher.old_stores.memory.workers import MemorySeats
from dispatcher.old_stores.numbers import service
from dispatcher.policies.clocks import STAY, Debit, Step


class MemoryInvocations:
    """`seats` is shared with the registry: a slot's lease changes together with its invocation."""

    def __init__(self, seats: MemorySeats, retention_s: float) -> None:
        self._seats = seats
        self._retention_s = retention_s
        self._invocations: dict[InvocationKey, Invocation] = {}
        self._expiries: deque[tuple[float, InvocationKey]] = deque()
        self._queues: dict[str, QueueRecord] = {}
        self._indexes: dict[str, WaitingIndex] = {}

    # ── Reads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> TenantQueue:
        record = self._queues.get(name)
        return record.view() if record is not None else TenantQueue(name)

    def waiting_queues(self, pool: str, now: float, limit: int) -> list[WaitingQueue]:
        index = self._indexes.get(pool)
        return index.first(now, limit) if index is not None else []

    def head_of(self, queue: str) -> Invocation | None:
        record = self._queues.get(queue)
        return self._invocations[record.entries[0][1]] if record is not None and record.entries else None

    def get_many(self, ids: Iterable[InvocationKey], now: float) -> list[Invocation]:
        self._purge(now)
        return [self._invocations[key] for key in dict.fromkeys(ids) if key in self._invocations]

    def overdue(self, pool: str, now: float, limit: int) -> list[Invocation]:
        index = self._indexes.get(pool)
        names = index.names() if index is not None else []
        waiting = (self._invocations[key] for name in names for _, key in self._queues[name].entries)
        late: list[Invocation] = []
        for invocation in waiting:
            if len(late) >= limit:
                break
            if invocation.deadline_at <= now:
                late.append(invocation)
        return late

    # ── Writes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, invocation: Invocation, debit: Debit, now: float, clock_now: float) -> Written:
        self._purge(clock_now)
        checked_body(invocation.body)
        if _key(invocation) in self._invocations:
            return Written.EXISTS
        queue = self._queue(invocation.queue)
        moved = queue.stepped(debit.tat, debit.vft)
        worker = self._claimable(invocation, now)
        if queue.entries or moved is None or worker is None:
            return Written.CONFLICT
        self._start(invocation, worker, debit, moved, now)
        return Written.DONE

    def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int, clock_now: float) -> Written:
        self._purge(clock_now)
        checked_body(invocation.body)
        if _key(invocation) in self._invocations:
            return Written.EXISTS
        queue = self._queue(invocation.queue)
        if len(queue.entries) >= waiting_max:
            return Written.FULL
        moved = queue.stepped(STAY, lift or STAY)
        if bool(queue.entries) is (lift is not None) or moved is None:
            return Written.CONFLICT
        queue.tat, queue.vft = moved
        self._invocations[_key(invocation)] = invocation
        self._join(queue, invocation)
        return Written.DONE

    def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        stored = self._invocations.get(_key(invocation))
        if stored is None or stored.state is not State.QUEUED or stored.attempt != invocation.attempt - 1:
            return Written.CONFLICT
        queue = self._queue(invocation.queue)
        moved = queue.stepped(debit.tat, debit.vft)
        worker = self._claimable(invocation, now)
        if stored.detached is not invocation.detached or moved is None or worker is None:
            return Written.CONFLICT
        self._quit(queue, stored)
        self._start(replace(invocation, body=stored.body), worker, debit, moved, now)
        return Written.DONE

    def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        if not self._runs(ended):
            return Settled.FENCED
        queue = self._queue(ended.queue)
        self._refund(queue, ended, tat, vft)
        queue.spent += service(ended.served)
        self._end(ended)
        return Settled.SETTLED

    def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        if not self._runs(invocation):
            return Settled.FENCED
        queue = self._queue(invocation.queue)
        self._refund(queue, invocation, tat, vft)
        queued = retried(invocation)
        self._invocations[_key(queued)] = queued
        self._join(queue, queued)
        return Settled.SETTLED

    def drop(self, ended: Invocation) -> Settled:
        stored = self._invocations.get(_key(ended))
        if stored is None or stored.state is not State.QUEUED or stored.attempt != ended.attempt:
            return Settled.FENCED
        self._quit(self._queue(ended.queue), stored)
        self._end(ended)
        return Settled.SETTLED

    def detach(self, key: InvocationKey) -> Written:
        stored = self._invocations.get(key)
        if stored is None or stored.state is not State.QUEUED or stored.body is None:
            return Written.CONFLICT
        self._invocations[key] = replace(stored, detached=True)
        return Written.DONE

    # ── Parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _queue(self, name: str) -> QueueRecord:
        return self._queues.setdefault(name, QueueRecord(name))

    def _claimable(self, invocation: Invocation, now: float) -> Worker | None:
        slot = invocation.slot
        return self._seats.claimable(invocation.pool, slot, now) if slot is not None else None

    def _runs(self, invocation: Invocation) -> bool:
        stored = self._invocations.get(_key(invocation))
        return stored is not None and stored.state is State.RUNNING and stored.attempt == invocation.attempt

    def _start(self, running: Invocation, worker: Worker, debit: Debit, moved: Sequence[Decimal], now: float) -> None:
        queue = self._queue(running.queue)
        queue.tat, queue.vft = moved
        queue.reserved += service(debit.charge.cost)
        self._reindex(queue)
        if running.slot is not None:
            lease = Lease(running.tenant, running.id, running.attempt, now)
            self._seats.claim(worker, running.slot.number, lease)
        self._invocations[_key(running)] = running

    def _refund(self, queue: QueueRecord, ran: Invocation, tat: Step, vft: Step) -> None:
        """The estimate is replaced: the clocks, the reservation and the slot."""
        moved = queue.stepped(tat, vft)
        if moved is None:
            raise ValueError("a settlement's steps must be valid in every branch")
        queue.tat, queue.vft = moved
        queue.reserved -= service(ran.charge.cost if ran.charge is not None else 0.0)
        self._reindex(queue)
        self._seats.release(ran.pool, ran.slot, f"{ran.tenant}/{ran.id}#{ran.attempt}")

    def _end(self, ended: Invocation) -> None:
        key = _key(ended)
        self._invocations[key] = replace(fitting(ended), body=None)
        self._expiries.append(((ended.ended_at or 0.0) + self._retention_s, key))

    def _join(self, queue: QueueRecord, queued: Invocation) -> None:
        queue.entries.append((queued.queue_key, _key(queued)))
        queue.entries.sort()
        if queue.waiting_pool not in (None, queued.pool):
            self._index(queue.waiting_pool or "").remove(queue.name)
        queue.waiting_pool = queued.pool
        self._reindex(queue)

    def _quit(self, queue: QueueRecord, queued: Invocation) -> None:
        queue.entries.remove((queued.queue_key, _key(queued)))
        self._reindex(queue)

    def _reindex(self, queue: QueueRecord) -> None:
        if queue.waiting_pool is None:
            return
        index = self._index(queue.waiting_pool)
        if queue.entries:
            index.put(queue)
        else:
            index.remove(queue.name)
            queue.waiting_pool = None

    def _index(self, pool: str) -> WaitingIndex:
        return self._indexes.setdefault(pool, WaitingIndex())

    def _purge(self, now: float) -> None:
        """Forget ended invocations after their retention, and queues that are equal to new ones."""
        while self._expiries and self._expiries[0][0] <= now:
            _, key = self._expiries.popleft()
            gone = self._invocations.pop(key, None)
            if gone is not None and gone.queue in self._queues and self._queues[gone.queue].is_blank():
                del self._queues[gone.queue]


def _key(invocation: Invocation) -> InvocationKey:
    return invocation.tenant, invocation.id
