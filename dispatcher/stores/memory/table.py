"""The table in memory. Each method is one request, under the name of what it does and the kind of
its partition ("get KEY"). A partition that is read forgets its expired items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from dispatcher.ports import Clock
from dispatcher.stores.memory.requests import CountedRequests
from dispatcher.stores.table import (
    PARTITION,
    SORT,
    Condition,
    ConditionFailed,
    DeleteItem,
    Item,
    Key,
    PutItem,
    check_conditions,
    is_live,
    key_of,
    update_item,
    without_none,
)


class ItemData:
    """The items of one table, by partition and sort key. Its methods are single steps, without faults."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, Item]] = defaultdict(dict)
        self.nonces = count()

    def get(self, key: Mapping[str, Any], now: float) -> Item | None:
        item = self.partitions.get(key[PARTITION], {}).get(key[SORT])
        return dict(item) if item is not None and is_live(item, now) else None

    def range(self, partition: str, low: str, high: str, now: float) -> list[Item]:
        items = self.partitions.get(partition, {})
        for sort in [sort for sort, item in items.items() if not is_live(item, now)]:
            del items[sort]
        return [dict(items[sort]) for sort in sorted(items) if low <= sort and (not high or sort <= high)]

    def write(self, writes: Sequence[PutItem | DeleteItem], now: float) -> None:
        """Make all writes, or raise ConditionFailed."""
        check_conditions(writes, [self.get(key_of(write), now) for write in writes])
        for write in writes:
            partition, sort = key_of(write)[PARTITION], key_of(write)[SORT]
            if isinstance(write, PutItem):
                self.partitions[partition][sort] = without_none(write.item)
            else:
                self.partitions[partition].pop(sort, None)


class MemoryTable:
    """dispatcher.stores.table.ItemTable."""

    def __init__(self, data: ItemData, requests: CountedRequests, clock: Clock) -> None:
        self._data, self._requests, self._clock = data, requests, clock

    @property
    def clock(self) -> Clock:
        return self._clock

    async def nonce(self) -> str:
        return f"{next(self._data.nonces):032x}"

    async def get(self, key: Key) -> Item | None:
        get = self._data.get
        return await self._requests.apply(_operation_name("get", key[PARTITION]), lambda: get(key, self._clock.now()))

    async def range(self, partition: str, low: str = "", high: str = "") -> Sequence[Item]:
        find = self._data.range
        return await self._requests.apply(
            _operation_name("range", partition), lambda: find(partition, low, high, self._clock.now())
        )

    async def put(self, item: Item, condition: Condition = None, *, synced: bool = True) -> Item | None:
        def apply() -> Item | None:
            now = self._clock.now()
            old = self._data.get(item, now)
            self._data.write([PutItem(item, condition)], now)
            return old

        return await self._requests.apply(_operation_name("put", item[PARTITION]), apply)

    async def put_each(self, puts: Sequence[PutItem], *, synced: bool = True) -> None:
        def apply() -> None:
            for each in puts:
                try:
                    self._data.write([each], self._clock.now())
                except ConditionFailed:
                    continue

        if puts:
            await self._requests.apply(_operation_name("put", puts[0].item[PARTITION]), apply)

    async def update(
        self,
        key: Key,
        values: Mapping[str, Any],
        *,
        removed: Sequence[str] = (),
        added: Mapping[str, int] | None = None,
        condition: Condition = None,
        returned: bool = False,
        synced: bool = True,
    ) -> Item | None:
        def apply() -> Item:
            now = self._clock.now()
            new = update_item(key, self._data.get(key, now), values, removed, added)
            self._data.write([PutItem(new, condition)], now)
            return new

        new = await self._requests.apply(_operation_name("update", key[PARTITION]), apply)
        return new if returned else None

    async def transact(self, writes: Sequence[PutItem | DeleteItem], nonce: str) -> None:
        write, named = self._data.write, _operation_name("transact", key_of(writes[0])[PARTITION])
        await self._requests.apply(named, lambda: write(writes, self._clock.now()))

    async def partitions(self, prefix: str) -> Sequence[str]:
        names = self._data.partitions
        return await self._requests.apply(
            _operation_name("partitions", prefix), lambda: sorted(name for name in names if name.startswith(prefix))
        )


def _operation_name(operation: str, partition: str) -> str:
    return f"{operation} {partition.partition('#')[0]}"
