"""Invocations and lines in memory: each method is one atomic statement with its conditions first, its effects last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from dispatcher.model.invocation import Invocation, State, retried
from dispatcher.model.outcomes import Settled, Written
from dispatcher.policies.clocks import STAY, Debit, Step
from dispatcher.ports import Lease, Line, WaitingLine, Worker
from dispatcher.stores.limits import checked_body, fitting
from dispatcher.stores.memory.queues import InvocationKey, LineRecord, WaitingIndex
from dispatcher.stores.memory.workers import MemorySeats
from dispatcher.stores.numbers import service


class MemoryInvocations:
    """`seats` is shared with the registry: a slot's lease changes together with its invocation."""

    def __init__(self, seats: MemorySeats, retention_s: float) -> None:
        self._seats = seats
        self._retention_s = retention_s
        self._invocations: dict[InvocationKey, Invocation] = {}
        self._expiries: deque[tuple[float, InvocationKey]] = deque()
        self._lines: dict[str, LineRecord] = {}
        self._indexes: dict[str, WaitingIndex] = {}

    # ── Reads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def line(self, name: str) -> Line:
        record = self._lines.get(name)
        return record.view() if record is not None else Line(name)

    def waiting_lines(self, pool: str, now: float, limit: int) -> list[WaitingLine]:
        index = self._indexes.get(pool)
        return index.first(now, limit) if index is not None else []

    def head_of(self, line: str) -> Invocation | None:
        record = self._lines.get(line)
        return self._invocations[record.queue[0][1]] if record is not None and record.queue else None

    def get_many(self, ids: Iterable[InvocationKey], now: float) -> list[Invocation]:
        self._purge(now)
        return [self._invocations[key] for key in dict.fromkeys(ids) if key in self._invocations]

    def overdue(self, pool: str, now: float, limit: int) -> list[Invocation]:
        index = self._indexes.get(pool)
        names = index.names() if index is not None else []
        waiting = (self._invocations[key] for name in names for _, key in self._lines[name].queue)
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
        line = self._line(invocation.line)
        moved = line.stepped(debit.tat, debit.vft)
        worker = self._claimable(invocation, now)
        if line.queue or moved is None or worker is None:
            return Written.CONFLICT
        self._start(invocation, worker, debit, moved, now)
        return Written.DONE

    def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int, clock_now: float) -> Written:
        self._purge(clock_now)
        checked_body(invocation.body)
        if _key(invocation) in self._invocations:
            return Written.EXISTS
        line = self._line(invocation.line)
        if len(line.queue) >= waiting_max:
            return Written.FULL
        moved = line.stepped(STAY, lift or STAY)
        if bool(line.queue) is (lift is not None) or moved is None:
            return Written.CONFLICT
        line.tat, line.vft = moved
        self._invocations[_key(invocation)] = invocation
        self._join(line, invocation)
        return Written.DONE

    def dispatch(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        stored = self._invocations.get(_key(invocation))
        if stored is None or stored.state is not State.QUEUED or stored.attempt != invocation.attempt - 1:
            return Written.CONFLICT
        line = self._line(invocation.line)
        moved = line.stepped(debit.tat, debit.vft)
        worker = self._claimable(invocation, now)
        if stored.detached is not invocation.detached or moved is None or worker is None:
            return Written.CONFLICT
        self._quit(line, stored)
        self._start(replace(invocation, body=stored.body), worker, debit, moved, now)
        return Written.DONE

    def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        if not self._runs(ended):
            return Settled.FENCED
        line = self._line(ended.line)
        self._refund(line, ended, tat, vft)
        line.spent += service(ended.served)
        self._end(ended)
        return Settled.SETTLED

    def requeue(self, invocation: Invocation, tat: Step, vft: Step) -> Settled:
        if not self._runs(invocation):
            return Settled.FENCED
        line = self._line(invocation.line)
        self._refund(line, invocation, tat, vft)
        queued = retried(invocation)
        self._invocations[_key(queued)] = queued
        self._join(line, queued)
        return Settled.SETTLED

    def drop(self, ended: Invocation) -> Settled:
        stored = self._invocations.get(_key(ended))
        if stored is None or stored.state is not State.QUEUED or stored.attempt != ended.attempt:
            return Settled.FENCED
        self._quit(self._line(ended.line), stored)
        self._end(ended)
        return Settled.SETTLED

    def detach(self, key: InvocationKey) -> Written:
        stored = self._invocations.get(key)
        if stored is None or stored.state is not State.QUEUED or stored.body is None:
            return Written.CONFLICT
        self._invocations[key] = replace(stored, detached=True)
        return Written.DONE

    # ── Parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _line(self, name: str) -> LineRecord:
        return self._lines.setdefault(name, LineRecord(name))

    def _claimable(self, invocation: Invocation, now: float) -> Worker | None:
        slot = invocation.slot
        return self._seats.claimable(invocation.pool, slot, now) if slot is not None else None

    def _runs(self, invocation: Invocation) -> bool:
        stored = self._invocations.get(_key(invocation))
        return stored is not None and stored.state is State.RUNNING and stored.attempt == invocation.attempt

    def _start(self, running: Invocation, worker: Worker, debit: Debit, moved: Sequence[Decimal], now: float) -> None:
        line = self._line(running.line)
        line.tat, line.vft = moved
        line.reserved += service(debit.charge.cost)
        self._reindex(line)
        if running.slot is not None:
            lease = Lease(running.tenant, running.id, running.attempt, now)
            self._seats.claim(worker, running.slot.number, lease)
        self._invocations[_key(running)] = running

    def _refund(self, line: LineRecord, ran: Invocation, tat: Step, vft: Step) -> None:
        """The estimate is replaced: the clocks, the reservation and the slot."""
        moved = line.stepped(tat, vft)
        if moved is None:
            raise ValueError("a settlement's steps must be valid in every branch")
        line.tat, line.vft = moved
        line.reserved -= service(ran.charge.cost if ran.charge is not None else 0.0)
        self._reindex(line)
        self._seats.release(ran.pool, ran.slot, f"{ran.tenant}/{ran.id}#{ran.attempt}")

    def _end(self, ended: Invocation) -> None:
        key = _key(ended)
        self._invocations[key] = replace(fitting(ended), body=None)
        self._expiries.append(((ended.ended_at or 0.0) + self._retention_s, key))

    def _join(self, line: LineRecord, queued: Invocation) -> None:
        line.queue.append((queued.queue_key, _key(queued)))
        line.queue.sort()
        if line.waiting_pool not in (None, queued.pool):
            self._index(line.waiting_pool or "").remove(line.name)
        line.waiting_pool = queued.pool
        self._reindex(line)

    def _quit(self, line: LineRecord, queued: Invocation) -> None:
        line.queue.remove((queued.queue_key, _key(queued)))
        self._reindex(line)

    def _reindex(self, line: LineRecord) -> None:
        if line.waiting_pool is None:
            return
        index = self._index(line.waiting_pool)
        if line.queue:
            index.put(line)
        else:
            index.remove(line.name)
            line.waiting_pool = None

    def _index(self, pool: str) -> WaitingIndex:
        return self._indexes.setdefault(pool, WaitingIndex())

    def _purge(self, now: float) -> None:
        """Ended invocations are forgotten after their retention, and lines that read like new ones with them."""
        while self._expiries and self._expiries[0][0] <= now:
            _, key = self._expiries.popleft()
            gone = self._invocations.pop(key, None)
            if gone is not None and gone.line in self._lines and self._lines[gone.line].is_blank():
                del self._lines[gone.line]


def _key(invocation: Invocation) -> InvocationKey:
    return invocation.tenant, invocation.id
