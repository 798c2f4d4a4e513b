"""Seats in memory: a pool's workers and the leases of their slots."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.model.old_fleet import SEATS_MAX, Lease, Worker
from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Written


class MemorySeats:
    """pool -> seat number -> worker as stored."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[int, Worker]] = {}

    def workers(self, pool: str) -> tuple[Worker, ...]:
        seats = self._pools.get(pool)
        return tuple(seats[number] for number in sorted(seats)) if seats else ()

    def register(self, worker: Worker, now: float) -> Worker | None:
        seats = self._pools.setdefault(worker.pool, {})
        for number in range(SEATS_MAX):
            if number in seats and seats[number].id == worker.id:
                return self._seat(worker, number, seats[number])
        for number in range(SEATS_MAX):
            if number not in seats or is_vacant(seats[number], now):
                return self._seat(worker, number, None)
        return None

    def heartbeat(self, worker: Worker) -> Worker | None:
        old = self._pools.get(worker.pool, {}).get(worker.seat)
        if old is None or old.id != worker.id:
            return None
        return self._seat(worker, worker.seat, old)

    def leave(self, worker: Worker) -> None:
        seats = self._pools.get(worker.pool, {})
        old = seats.get(worker.seat)
        if old is None or old.id != worker.id:
            return
        if old.leases:
            seats[worker.seat] = replace(old, draining=True, alive_until=0.0, live=frozenset())
        else:
            del seats[worker.seat]

    def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        held = self.find(worker.pool, worker.id)
        if held is None or not _same(held.leases.get(slot.number), lease):
            return Written.CONFLICT
        self._set_lease(held, slot.number, None)
        return Written.DONE

    def find(self, pool: str, worker_id: str) -> Worker | None:
        return next((worker for worker in self._pools.get(pool, {}).values() if worker.id == worker_id), None)

    def claimable(self, pool: str, slot: Slot, now: float) -> Worker | None:
        """Return the slot's worker if the slot can be leased now, else None."""
        worker = self.find(pool, slot.worker)
        if worker is None or not worker.takes_work(now) or slot.number in worker.leases:
            return None
        return worker if 0 <= slot.number < worker.slots else None

    def claim(self, worker: Worker, number: int, lease: Lease) -> None:
        self._set_lease(worker, number, lease)

    def release(self, pool: str, slot: Slot | None, execution: str) -> None:
        """Free the slot if it still holds this execution."""
        worker = self.find(pool, slot.worker) if slot is not None else None
        if worker is None or slot is None:
            return
        held = worker.leases.get(slot.number)
        if held is not None and held.execution == execution:
            self._set_lease(worker, slot.number, None)

    def _seat(self, worker: Worker, number: int, old: Worker | None) -> Worker:
        """Store what the worker says of itself; its leases are the store's to say."""
        stored = replace(worker, seat=number, leases=old.leases if old else {})
        self._pools[worker.pool][number] = stored
        return stored

    def _set_lease(self, worker: Worker, number: int, lease: Lease | None) -> None:
        leases = {held: other for held, other in worker.leases.items() if held != number}
        if lease is not None:
            leases[number] = lease
        self._pools[worker.pool][worker.seat] = replace(worker, leases=leases)


def is_vacant(worker: Worker, now: float) -> bool:
    """Return whether another worker may take the seat: its worker is dead and its leases are ended.

    Until then the leases are the only trace of the invocations that it was running.
    """
    return now >= worker.alive_until and not worker.leases


def _same(held: Lease | None, lease: Lease) -> bool:
    return held is not None and held.execution == lease.execution
