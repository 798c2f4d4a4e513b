"""Seats in DynamoDB: one item a worker, the leases of its slots inside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatcher.model.old_fleet import SEATS_MAX, Lease, Worker
from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Written
from dispatcher.old_stores.dynamodb.attributes import decode_item
from dispatcher.old_stores.dynamodb.expressions import Statement
from dispatcher.old_stores.dynamodb.items import lease_item, to_worker, worker_item
from dispatcher.old_stores.dynamodb.layout import PARTITION, Key, seat_key
from dispatcher.old_stores.dynamodb.reads import Reads
from dispatcher.old_stores.dynamodb.requests import ConditionFailed, Requests

REGISTER_TRIES_MAX = 2 * SEATS_MAX
NO_LEASES: dict[str, str] = {}


class DynamoWorkers:
    """Knows, as a hint, in which seat each worker was last seen; every condition compares the worker's id."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests = requests
        self._reads = reads
        self._seats: dict[str, dict[str, int]] = {}

    async def register(self, worker: Worker) -> Worker | None:
        for number in range(REGISTER_TRIES_MAX):
            seated = {other.seat: other for other in await self.workers(worker.pool)}
            own = next((seat for seat, other in seated.items() if other.id == worker.id), None)
            vacant = [seat for seat in range(SEATS_MAX) if seat not in seated or self._is_vacant(seated[seat])]
            if own is None and not vacant:
                return None
            # At random after the first try: workers that start together would meet at every seat in turn.
            seat = own if own is not None else vacant[self._requests.pick(len(vacant)) if number else 0]
            taken = await self._take(worker, seat, seated.get(seat))
            if taken is not None:
                return taken
        return None

    async def heartbeat(self, worker: Worker) -> Worker | None:
        # The seat was given to another while this worker was silent: it must not answer for the other's leases.
        statement = _occupied(seat_key(worker.pool, worker.seat), worker.id)
        statement.set_all(worker_item(worker))
        return await self._renew(statement)

    async def leave(self, worker: Worker) -> None:
        """The seat is free at once; with leases left it stays until the sweep has ended what they stand for."""
        key, table = seat_key(worker.pool, worker.seat), self._requests.table
        empty = _occupied(key, worker.id)
        empty.require(empty.compares("slots", "=", NO_LEASES))
        try:
            await self._requests.write("delete_item", empty.as_delete(table))
        except ConditionFailed as refused:
            if (refused.old[0] or {}).get("id") == worker.id:
                gone = _occupied(key, worker.id)
                gone.set_all({"draining": True, "alive_until": 0, "live": []})
                await self._renew(gone)

    async def workers(self, pool: str) -> Sequence[Worker]:
        found = await self._reads.items(seat_keys(pool))
        return self.remembered(pool, [to_worker(found[key]) for key in sorted(found)])

    async def free_slot(self, worker: Worker, slot: Slot, lease: Lease) -> Written:
        statement = release(worker.pool, worker.seat, slot, lease.execution)
        try:
            await self._requests.write("update_item", statement.as_update(self._requests.table))
        except ConditionFailed as refused:
            # Perhaps it was this very write that freed it: either way the lease is gone, and nothing else was touched.
            return Written.DONE if refused.perhaps_applied else Written.CONFLICT
        return Written.DONE

    async def seat_of(self, pool: str, worker_id: str) -> int | None:
        """From memory where it was seen before, else one request."""
        if worker_id not in self._seats.get(pool, {}):
            await self.workers(pool)
        return self._seats.get(pool, {}).get(worker_id)

    def remembered(self, pool: str, workers: Iterable[Worker]) -> tuple[Worker, ...]:
        seen = tuple(workers)
        self._seats[pool] = {worker.id: worker.seat for worker in seen}
        return seen

    def _is_vacant(self, worker: Worker) -> bool:
        """Return whether another worker may take the seat: its worker is dead and its leases are ended.

        Until then the leases are the only trace of the invocations that it was running.
        """
        return self._requests.clock.now() >= worker.alive_until and not worker.leases

    async def _take(self, worker: Worker, seat: int, seated: Worker | None) -> Worker | None:
        key = seat_key(worker.pool, seat)
        if seated is None:
            # Two workers saw the same empty seat: the second reads again.
            statement = Statement(key)
            statement.require(statement.absent(PARTITION))
            statement.set("slots", NO_LEASES)
        else:
            statement = _occupied(key, seated.id)
            if seated.id != worker.id:
                # The dead worker sent a heartbeat or got a lease since it was read: it keeps the seat.
                statement.require(statement.compares("alive_until", "<=", self._requests.clock.now()))
                statement.require(statement.compares("slots", "=", NO_LEASES))
        statement.set_all(worker_item(worker) | {"seat": seat})
        return await self._renew(statement)

    async def _renew(self, statement: Statement) -> Worker | None:
        """Apply, and return what is stored then; None where the condition failed."""
        arguments = statement.as_update(self._requests.table) | {"ReturnValues": "ALL_NEW"}
        try:
            answer = await self._requests.write("update_item", arguments)
        except ConditionFailed:
            return None
        worker = to_worker(decode_item(answer["Attributes"]))
        self._seats.setdefault(worker.pool, {})[worker.id] = worker.seat
        return worker


def seat_keys(pool: str) -> list[Key]:
    return [seat_key(pool, seat) for seat in range(SEATS_MAX)]


def claim(pool: str, seat: int, slot: Slot, lease: Lease, now: float) -> Statement:
    """Lease a slot."""
    # The worker left its seat after it was read, and another sits there.
    statement = _occupied(seat_key(pool, seat), slot.worker)
    # It began to drain, or became silent, after it was read: nothing new goes to it.
    statement.require(statement.compares("draining", "=", False))
    statement.require(statement.compares("alive_until", ">", now))
    # It registered again with fewer slots.
    statement.require(statement.compares("slots_max", ">", slot.number))
    # Two dispatchers saw the slot free: it goes to one execution.
    statement.require(statement.absent(f"slots.{slot.number}"))
    statement.set(f"slots.{slot.number}", lease_item(lease))
    return statement


def release(pool: str, seat: int, slot: Slot, execution: str) -> Statement:
    """Free a slot that this execution still holds."""
    # The sweep took the lease back and the slot, or the whole seat, is another's by now: it must not be freed.
    statement = _occupied(seat_key(pool, seat), slot.worker)
    statement.require(statement.compares(f"slots.{slot.number}.execution", "=", execution))
    statement.remove(f"slots.{slot.number}")
    return statement


def _occupied(key: Key, worker_id: str) -> Statement:
    statement = Statement(key)
    statement.require(statement.compares("id", "=", worker_id))
    return statement
