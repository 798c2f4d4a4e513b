"""A pool's clock and hints, and the snapshot of all that a decision needs."""

from __future__ import annotations

from dispatcher.model.old_fleet import Snapshot
from dispatcher.old_stores.dynamodb.expressions import Statement
from dispatcher.old_stores.dynamodb.items import to_pool, to_queue, to_worker
from dispatcher.old_stores.dynamodb.layout import PARTITION, SORT, Key, pool_key, queue_key
from dispatcher.old_stores.dynamodb.reads import Reads
from dispatcher.old_stores.dynamodb.requests import ConditionFailed, Requests
from dispatcher.old_stores.dynamodb.workers import DynamoWorkers, seat_keys
from dispatcher.old_stores.numbers import virtual_time as rounded_down


class DynamoPools:
    def __init__(self, requests: Requests, reads: Reads, workers: DynamoWorkers) -> None:
        self._requests = requests
        self._reads = reads
        self._workers = workers

    async def snapshot(self, pool: str, queue: str) -> Snapshot:
        """Pool, queue and every seat: one request."""
        seats = seat_keys(pool)
        found = await self._reads.items([pool_key(pool), queue_key(queue), *seats])
        seated = [to_worker(found[_at(key)]) for key in seats if _at(key) in found]
        state, waiting = found.get(_at(pool_key(pool))), found.get(_at(queue_key(queue)))
        return Snapshot(to_pool(pool, state), to_queue(queue, waiting), self._workers.remembered(pool, seated))

    async def note(self, pool: str, time: float | None, backlogged: bool | None, rate_scale: float | None) -> None:
        """One request; two where V has already been raised further by another and there are hints to set."""
        if time is not None:
            raising = _hints(pool, backlogged, rate_scale)
            v = rounded_down(time)
            # Another's later dispatch raised it further: V never falls.
            raising.require(raising.absent("virtual_time"), raising.compares("virtual_time", "<", v))
            raising.set("virtual_time", v)
            if await self._apply(raising):
                return
        if backlogged is not None or rate_scale is not None:
            await self._apply(_hints(pool, backlogged, rate_scale))

    async def _apply(self, statement: Statement) -> bool:
        try:
            await self._requests.write("update_item", statement.as_update(self._requests.table))
        except ConditionFailed:
            return False
        return True


def _hints(pool: str, backlogged: bool | None, rate_scale: float | None) -> Statement:
    statement = Statement(pool_key(pool))
    hints = {"backlogged": backlogged, "rate_scale": rate_scale}
    statement.set_all({name: hint for name, hint in hints.items() if hint is not None})
    return statement


def _at(key: Key) -> tuple[str, str]:
    return key[PARTITION], key[SORT]
