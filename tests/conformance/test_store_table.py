"""The port to one table: what all backends do with an item, a condition, an expiry and a transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.stores.records.record_store import RecordStore
from dispatcher.stores.table import (
    EXPIRY,
    PARTITION,
    SORT,
    Condition,
    ConditionFailed,
    DeleteItem,
    IfAbsent,
    IfLower,
    IfPresent,
    Item,
    ItemTable,
    Key,
    PutItem,
)
from tests.conformance.store_world import START, FakeClock

NOW = int(START)


@pytest.fixture
def table(store: RecordStore) -> ItemTable:
    return store._table


def key(sort: str = "a", partition: str = "P#1") -> Key:
    return {PARTITION: partition, SORT: sort}


def item(sort: str = "a", **attributes: Any) -> Item:
    return {**key(sort), **attributes}


def put(sort: str, condition: Condition = None, **attributes: Any) -> PutItem:
    return PutItem(item(sort, **attributes), condition)


async def sorts(table: ItemTable, *bounds: str) -> list[str]:
    return [each[SORT] for each in await table.range("P#1", *bounds)]


async def test_an_item_is_read_as_it_was_written_without_none(table: ItemTable) -> None:
    written = item(
        text="é\n", flag=False, count=10**12, part=-0.5, data=b"\x00\xff", empty="",
        parts=[b"x", 1.5, "y"], inner={"data": b"", "count": 0},
    )  # fmt: skip
    assert await table.put({**written, "none": None}) is None
    assert await table.get(key()) == written
    assert await table.get(key("b")) is None
    assert await table.put(item(count=1)) == written
    assert await table.get(key()) == item(count=1)


async def test_a_range_is_ordered_and_has_both_bounds(table: ItemTable) -> None:
    for sort in ("é", "b", "a", "ab", "\U0001f600"):
        await table.put(item(sort))
    await table.put({**key("a", "P#10"), "other": True})
    assert await sorts(table) == ["a", "ab", "b", "é", "\U0001f600"]
    assert await sorts(table, "ab") == ["ab", "b", "é", "\U0001f600"]
    assert await sorts(table, "ab", "b") == ["ab", "b"]
    assert await sorts(table, "c", "d") == []
    assert list(await table.range("P#2")) == []


async def test_a_condition_allows_a_write_or_names_the_item_in_its_way(table: ItemTable) -> None:
    with pytest.raises(ConditionFailed) as none:
        await table.put(item(), IfPresent())
    assert none.value.old == (None,)
    await table.put(item(version=1), IfAbsent())
    for condition in (IfAbsent(), IfPresent({"version": 2}), IfPresent(lacks=("version",)), IfLower("version")):
        with pytest.raises(ConditionFailed) as refused:
            await table.put(item(version=1, other=True), condition)
        assert refused.value.old == (item(version=1),)
    await table.put(item(version=2), IfPresent({"version": 1}, lacks=("answer",)))
    await table.put(item(version=3), IfLower("version"))
    await table.put(item("b", version=1), IfLower("version"))
    assert await table.get(key()) == item(version=3)


async def test_puts_of_a_batch_are_each_for_itself(table: ItemTable) -> None:
    await table.put(item("b", version=5))
    await table.put_each([put(sort, IfLower("version"), version=4) for sort in ("a", "b", "c")])
    await table.put_each([])
    assert [(each[SORT], each["version"]) for each in await table.range("P#1")] == [("a", 4), ("b", 5), ("c", 4)]


async def test_an_update_sets_removes_and_adds(table: ItemTable) -> None:
    assert await table.update(key(), {"x": "1"}, added={"sum": 3}, returned=True) == item(x="1", sum=3)
    assert await table.update(key(), {"y": {"z": 1}}, removed=("x", "none"), added={"sum": -5}) is None
    assert await table.get(key()) == item(y={"z": 1}, sum=-2)
    with pytest.raises(ConditionFailed) as refused:
        await table.update(key(), {"x": "2"}, condition=IfPresent(lacks=("y",)))
    assert refused.value.old == (item(y={"z": 1}, sum=-2),)
    with pytest.raises(ConditionFailed):
        await table.update(key("b"), {"x": "2"}, condition=IfPresent())
    assert await table.get(key("b")) is None


async def test_an_item_that_has_expired_is_none(table: ItemTable, clock: FakeClock) -> None:
    for sort in ("a", "b", "c", "d"):
        await table.put(item(sort, version=9, **{EXPIRY: NOW + 10}))
    clock.time = START + 9
    assert len(await sorts(table)) == 4
    clock.time = START + 10
    assert await table.get(key()) is None
    assert await sorts(table) == []
    with pytest.raises(ConditionFailed) as refused:
        await table.put(item("a", version=1), IfPresent({"version": 9}))
    assert refused.value.old == (None,)
    with pytest.raises(ConditionFailed):
        await table.update(key("b"), {"version": 1}, condition=IfPresent())
    assert await table.put(item("b", version=1), IfAbsent()) is None
    assert await table.put(item("c", version=1), IfLower("version")) is None
    await table.transact([put("d", IfAbsent(), version=1)], await table.nonce())
    assert await sorts(table) == ["b", "c", "d"]
    await table.put(item("b", **{EXPIRY: NOW}))
    assert await sorts(table) == ["c", "d"]


async def test_a_transaction_makes_all_its_writes_or_none(table: ItemTable) -> None:
    await table.transact([put("a", IfAbsent(), version=1), put("b"), put("c")], await table.nonce())
    changed = put("a", IfPresent({"version": 1}), version=2)
    nonce = await table.nonce()
    with pytest.raises(ConditionFailed) as refused:
        await table.transact([changed, put("b", IfAbsent()), DeleteItem(key("c"))], nonce)
    assert refused.value.old == (None, item("b"), None)
    assert await sorts(table) == ["a", "b", "c"]
    await table.transact([DeleteItem(key("c")), DeleteItem(key("none")), changed], await table.nonce())
    assert list(await table.range("P#1")) == [item("a", version=2), item("b")]


async def test_one_of_many_writers_wins_and_every_addition_counts(stores: list[Any]) -> None:
    tables: list[ItemTable] = [store._table for store in stores]

    async def take(number: int) -> bool:
        try:
            await tables[number % 3].put(item(number=number), IfAbsent())
        except ConditionFailed:
            return False
        return True

    taken = await asyncio.gather(*(take(number) for number in range(9)))
    assert sum(taken) == 1
    assert await tables[0].get(key()) == item(number=taken.index(True))
    await asyncio.gather(*(tables[number % 3].update(key("b"), {}, added={"sum": 1}) for number in range(9)))
    assert await tables[0].get(key("b")) == item("b", sum=9)
    nonces = [await table.nonce() for table in tables for _ in range(3)]
    assert len(set(nonces)) == len(nonces)


async def test_partitions_are_listed_where_they_can_be(table: ItemTable) -> None:
    for partition in ("P#1", "P#10", "P#2", "Q"):
        await table.put(key("a", partition))
    assert list(await table.partitions("P#1")) in ([], ["P#1", "P#10"])
