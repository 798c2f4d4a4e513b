"""A log that becomes striped while many write: whatever the order of their requests, each position is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from dispatcher.stores.dynamodb.log import DynamoLog
from dispatcher.stores.dynamodb.requests import decode_item
from dispatcher.stores.table import ConditionFailed, Item
from tests.support.world.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time

LATENCY_S = 0.01


class Table:
    """The items of one table, with the requests of LogItems. Each takes effect at a random time before its reply.

    It stands for `Requests` and `Reads`: the rest of DynamoLog is the product's.
    """

    def __init__(self, random: Random) -> None:
        self.clock = LoopClock()
        self.items: dict[tuple[str, str], Item] = {}
        self.server_time = self
        self._random = random

    def is_right(self, *_: object) -> bool:
        return True

    async def put(self, item: Mapping[str, Any], condition: str) -> None:
        assert condition == "attribute_not_exists(pk)"
        await self._travel()
        decoded = decode_item(item)
        present = self.items.setdefault((decoded["pk"], decoded["sk"]), decoded)
        await self._travel()
        if present is not decoded:
            raise ConditionFailed((present,))

    async def query(
        self,
        partition: str,
        condition: str = "",
        values: Mapping[str, str] | None = None,
        limit: int | None = None,
        *,
        ScanIndexForward: bool = True,  # noqa: N803 - as boto3 has it
    ) -> list[Item]:
        await self._travel()
        found = sorted((sk, item) for (pk, sk), item in self.items.items() if pk == partition)
        if values:
            bound = values[":from"]
            found = [(sk, item) for sk, item in found if (sk >= bound if ">=" in condition else sk < bound)]
        chosen = [item for _, item in (found if ScanIndexForward else reversed(found))][:limit]
        await self._travel()
        return chosen

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.random() * LATENCY_S)


class Writer:
    """Writes and reads as a replica does: at the position behind the last entry that it knows."""

    def __init__(self, table: Table, name: str, random: Random, known: dict[int, bytes]) -> None:
        self._table, self._name, self._random = table, name, random
        self._known = known
        """What all writers know to be in the log. It must never change."""
        self._position = 0
        self._log = self._new_log()

    def _new_log(self) -> DynamoLog:
        stripes = self._random.choice((1, 1, 3, 5))
        return DynamoLog(self._table, self._table, "s", stripes)  # type: ignore[arg-type]

    async def write(self, entries: int) -> None:
        for number in range(entries):
            if self._random.random() < 0.2:  # it is a new process, which begins at a snapshot
                self._log, self._position = self._new_log(), self._random.randint(0, len(self._known))
            if self._random.random() < 0.5:
                for each in await self._log.read(self._position, self._random.choice((1, 3, 1000))):
                    self._note(each)
            mine = f"{self._name}{number}".encode()
            while (stands := await self._log.append(self._position, mine)) != mine:
                self._note(stands)
            self._note(mine)

    def _note(self, entry: bytes) -> None:
        assert self._known.setdefault(self._position, entry) == entry, "a position has two entries"
        self._position += 1


@pytest.mark.parametrize("seed", range(60))
async def test_each_position_is_written_once(seed: int) -> None:
    random = Random(seed)
    table, known = Table(random), dict[int, bytes]()
    writers = [Writer(table, f"w{number}-", random, known) for number in range(4)]
    await asyncio.gather(*(writer.write(8) for writer in writers))
    assert sorted(known) == list(range(32))
    assert len(set(known.values())) == 32
    cold = DynamoLog(table, table, "s")  # type: ignore[arg-type]
    assert list(await cold.read(0)) == [known[position] for position in range(32)]
    assert await cold.last() == (31, known[31])
    assert {pk for pk, _ in table.items} > {"LOG#s"}, "no writer striped the log"


@pytest.mark.parametrize("seed", range(20))
async def test_a_reader_beside_writers_sees_no_gap_and_misses_nothing(seed: int) -> None:
    random = Random(seed)
    table, known = Table(random), dict[int, bytes]()
    reader, seen = DynamoLog(table, table, "s"), list[bytes]()  # type: ignore[arg-type]
    writers = [Writer(table, f"w{number}-", random, known) for number in range(3)]
    writing = [asyncio.ensure_future(writer.write(8)) for writer in writers]
    while not all(each.done() for each in writing):
        before = len(known)
        seen += await reader.read(len(seen), random.choice((2, 1000)))
        last = await reader.last()
        assert last is None or last[0] >= before - 1
    await asyncio.gather(*writing)
    while new := await reader.read(len(seen), 1000):
        seen += new
    assert seen == [known[position] for position in range(24)]
