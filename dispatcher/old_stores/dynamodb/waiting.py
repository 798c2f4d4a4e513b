"""The indexes of waiting queues, the head of a queue, overdue invocations. All are hints; writes check again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.model.old_fleet import WaitingQueue
from dispatcher.model.old_invocation import Invocation, State
from dispatcher.old_stores.dynamodb.attributes import Item, encode
from dispatcher.old_stores.dynamodb.items import to_invocation, to_waiting_queue
from dispatcher.old_stores.dynamodb.layout import (
    BY_TAT,
    BY_VFT,
    PARTITION,
    QUEUE_PREFIX,
    SORT,
    WAITING_POOL,
    invocation_key,
    queue_key,
)
from dispatcher.old_stores.dynamodb.reads import Reads

PAGE_QUEUES = 200
"""Queues read of an index at once, about 16 KB. A pool with no more waiting queues is seen whole, in one request."""
HEAD_TRIES_MAX = 3
OVERDUE_QUEUES_MAX = 5_000


class DynamoQueue:
    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def waiting_queues(self, pool: str, now: float, limit: int) -> Sequence[WaitingQueue]:
        """Read the waiting queues: one request if they are at most PAGE_QUEUES, two beyond.

        Beyond that, the PAGE_QUEUES with the lowest tat are read too. More of them are in profile at once only while
        guarantees are overbooked.
        """
        page, complete = await self._queues(BY_VFT, pool)
        seen = {queue.name: queue for queue in page}
        if not complete:
            due, _ = await self._queues(BY_TAT, pool, until=now)
            seen.update((queue.name, queue) for queue in due)
        ordered = sorted(seen.values(), key=lambda queue: (queue.tat > now, queue.vft, queue.name))
        return ordered[:limit]

    async def head_of(self, queue: str) -> tuple[Invocation | None, bool]:
        """The oldest waiting invocation, and whether it is the only one: two requests."""
        for _ in range(HEAD_TRIES_MAX):
            pointers = await self._reads.partition(queue_key(queue)[PARTITION], QUEUE_PREFIX, limit=2)
            if not pointers:
                return None, True
            head = await self._reads.item(invocation_key(pointers[0]["tenant"], pointers[0]["id"]))
            # Between the two reads it may have been dispatched: then the next one is the head.
            if head is not None and head["state"] == State.QUEUED.value:
                return to_invocation(head), len(pointers) == 1
        return None, True

    async def overdue(self, pool: str, now: float, limit: int) -> Sequence[Invocation]:
        """Return overdue invocations: one request for each waiting queue, one per 100 found. Only for the sweep."""
        late: list[Item] = []
        for name in await self._all_queues(pool):
            late += await self._late_of(name, now)
            if len(late) >= limit:
                break
        keys = [invocation_key(pointer["tenant"], pointer["id"]) for pointer in late[:limit]]
        found = map(to_invocation, (await self._reads.items(keys)).values())
        return [invocation for invocation in found if invocation.state is State.QUEUED]

    async def _queues(self, index: str, pool: str, until: float | None = None) -> tuple[list[WaitingQueue], bool]:
        """The first page of an index, and whether it is all."""
        condition, names, values = _of_pool(pool)
        if until is not None:
            condition, names = f"{condition} AND #tat <= :until", {**names, "#tat": "tat"}
            values = {**values, ":until": encode(until)}
        pages = self._reads.query(condition, names, values, limit=PAGE_QUEUES, IndexName=index)
        async for page in pages:
            return [to_waiting_queue(item) for item in page], len(page) < PAGE_QUEUES
        return [], True

    async def _all_queues(self, pool: str) -> list[str]:
        names: list[str] = []
        async for page in self._reads.query(*_of_pool(pool), IndexName=BY_VFT):
            names += [item["line"] for item in page]
            if len(names) >= OVERDUE_QUEUES_MAX:
                break
        return names

    async def _late_of(self, queue: str, now: float) -> list[Item]:
        condition = "#pk = :pk AND begins_with(#sk, :prefix)"
        names = {"#pk": PARTITION, "#sk": SORT, "#deadline": "deadline_at"}
        values = {":pk": encode(queue_key(queue)[PARTITION]), ":prefix": encode(QUEUE_PREFIX), ":now": encode(now)}
        late: list[Item] = []
        async for page in self._reads.query(condition, names, values, FilterExpression="#deadline <= :now"):
            late += page
        return late


def _of_pool(pool: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    return "#pool = :pool", {"#pool": WAITING_POOL}, {":pool": encode(pool)}
