"""A striped log keeps the promises of every log, and becomes striped while processes write that do not know of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from dispatcher.model.errors import LogGap, LogNewer
from dispatcher.settings.config import LOG_STRIPES_MAX
from dispatcher.shard.codec import decode_entry_at
from tests.conformance.store_backends import PlaceMaker, TablePlace
from tests.conformance.store_damage import TableDamage
from tests.conformance.store_world import SHARD, FakeClock
from tests.conformance.test_store_log import *  # noqa: F403 (the same promises)
from tests.conformance.test_store_log import WEEK_S
from tests.conformance.test_store_snapshots import *  # noqa: F403

_numbers = itertools.count()


@pytest.fixture(params=[3, LOG_STRIPES_MAX])
def place(request: pytest.FixtureRequest, servers: dict[str, PlaceMaker]) -> TablePlace:
    made = servers["moto"]()
    assert isinstance(made, TablePlace)
    return TablePlace(made.endpoint_url, f"striped-{next(_numbers)}", stripes=request.param)


@pytest.fixture
def unstriped(place: TablePlace) -> TablePlace:
    """The same table, as processes see it that were not told to stripe the log."""
    seen = TablePlace.__new__(TablePlace)
    seen.__dict__ |= {**place.__dict__, "stripes": 1}
    return seen


async def test_a_log_becomes_striped_where_it_ends(place: TablePlace, unstriped: TablePlace, clock: FakeClock) -> None:
    log, other = place.open(clock).log(SHARD), unstriped.open(clock).log(SHARD)
    assert [await other.append(position, b"old") for position in range(2)] == [b"old"] * 2
    assert list(await log.read(0)) == [b"old"] * 2
    assert await log.append(2, b"new") == b"new"
    assert await other.append(2, b"late") == b"new"
    assert await other.append(3, b"after") == b"after"
    cold = unstriped.open(clock).log(SHARD)
    assert await cold.last() == (3, b"after")
    for position in range(5):
        assert list(await cold.read(position)) == [b"old", b"old", b"new", b"after"][position:]
        assert list(await cold.read(position, limit=1)) == [b"old", b"old", b"new", b"after"][position:][:1]


async def test_a_writer_that_dies_after_the_mark_leaves_a_whole_log(
    place: TablePlace, unstriped: TablePlace, clock: FakeClock
) -> None:
    log = place.open(clock).log(SHARD)
    await unstriped.open(clock).log(SHARD).append(0, b"old")
    marking = log._items  # type: ignore[attr-defined]
    await marking._put_mark(1)
    for opened in (unstriped.open(clock).log(SHARD), place.open(clock).log(SHARD)):
        assert await opened.last() == (0, b"old")
        assert list(await opened.read(0)) == [b"old"]
        assert list(await opened.read(1)) == []
    assert await unstriped.open(clock).log(SHARD).append(1, b"new") == b"new"
    assert await place.open(clock).log(SHARD).last() == (1, b"new")


async def test_whoever_begins_at_a_snapshot_behind_the_mark_learns_of_it(
    place: TablePlace, unstriped: TablePlace, clock: FakeClock
) -> None:
    """Its position is above the mark, and it has read no entry before it."""
    early = unstriped.open(clock).log(SHARD)
    assert await early.append(0, b"old") == b"old"
    log = place.open(clock).log(SHARD)
    await log.save_snapshot(1, "n", b"old state")
    for position in range(1, 4):
        await log.append(position, b"new")
    await log.save_snapshot(4, "n", b"state")
    for position, opened in enumerate((early, unstriped.open(clock).log(SHARD)), 4):
        assert await opened.load_snapshot() == (4, b"state")
        assert list(await opened.read(position)) == []
        assert await opened.append(position, b"mine") == await log.append(position, b"other") == b"mine"


async def test_an_older_version_finds_no_snapshot_behind_the_mark_and_stops_at_it(
    place: TablePlace, clock: FakeClock
) -> None:
    """So it never writes beside the stripes."""
    log = place.open(clock).log(SHARD)
    await log.append(0, b"new")
    await log.save_snapshot(1, "n", b"state")
    first = items_of(place, f"LOG#{SHARD}")
    assert [item["sk"]["S"] for item in first] == ["0" * 14]
    assert "ttl" not in first[0]
    with pytest.raises(LogNewer, match="update this process"):
        decode_entry_at(0, first[0]["entry"]["B"])
    assert items_of(place, f"SNAP#{SHARD}") == []


def items_of(place: TablePlace, partition: str) -> Sequence[dict[str, Any]]:
    values = {":pk": {"S": partition}}
    found = place.client.query(
        TableName=place.table, KeyConditionExpression="pk = :pk", ExpressionAttributeValues=values
    )
    return list(found["Items"])


@pytest.mark.parametrize("missing", [3, 4, 5])
async def test_an_expired_entry_is_a_gap_in_every_stripe(place: TablePlace, clock: FakeClock, missing: int) -> None:
    """Also for a process that found the position free: the entry came later, and has expired since."""
    log, other = place.open(clock).log(SHARD), place.open(clock).log(SHARD)
    for position in range(missing):
        await log.append(position, b"entry")
    assert len(await other.read(0)) == missing
    assert list(await other.read(missing)) == []
    for position in range(missing, 7):
        await log.append(position, b"entry")
    clock.time += WEEK_S - 3600.0
    place.damage.expire(SHARD, [missing])
    with pytest.raises(LogGap, match=f"no entry {missing}"):
        await other.read(missing)


async def test_a_read_that_ends_at_its_limit_shows_nothing_of_the_next_entry(
    place: TablePlace, clock: FakeClock
) -> None:
    log, other = place.open(clock).log(SHARD), place.open(clock).log(SHARD)
    for position in range(7):
        await log.append(position, b"entry")
    assert len(await other.read(0, limit=3)) == 3
    clock.time += WEEK_S - 3600.0
    place.damage.expire(SHARD, [3])
    with pytest.raises(LogGap, match="no entry 3"):
        await other.read(3)


async def test_a_position_that_is_free_because_all_expired_hides_no_gap(place: TablePlace, clock: FakeClock) -> None:
    """Its own entry has expired too, so its stripe will never show one."""
    log, other, late = (place.open(clock).log(SHARD) for _ in range(3))
    for position in range(4):
        await log.append(position, b"entry")
    assert await other.last() == (3, b"entry")
    clock.time += WEEK_S
    place.damage.expire(SHARD, range(4))
    assert list(await other.read(2)) == list(await late.read(2)) == []
    assert list(await other.read(4)) == []
    assert await log.append(4, b"four") == b"four"
    for reader in (other, late):
        with pytest.raises(LogGap, match="no entry 2"):
            await reader.read(2)
        assert await reader.last() == (4, b"four")


async def test_entries_that_expired_before_the_mark_are_a_gap(
    place: TablePlace, unstriped: TablePlace, clock: FakeClock
) -> None:
    """The mark shows that they were there, also while no entry is in a stripe."""
    old, log = unstriped.open(clock).log(SHARD), place.open(clock).log(SHARD)
    for position in range(3):
        await old.append(position, b"old")
    await log._items._put_mark(3)  # type: ignore[attr-defined]
    clock.time += WEEK_S
    TableDamage(place.client, place.table).expire(SHARD, [1, 2])
    for reader in (old, log, unstriped.open(clock).log(SHARD)):
        assert list(await reader.read(0, limit=1)) == [b"old"]
        for position in (0, 1, 2):
            with pytest.raises(LogGap, match=f"no entry {max(position, 1)}"):
                await reader.read(position)
        assert list(await reader.read(3)) == []


async def test_a_wrong_clock_asks_all_stripes(place: TablePlace, clock: FakeClock) -> None:
    """It may take an entry for a young one that has expired."""
    log, other = place.open(clock).log(SHARD), place.open(clock).log(SHARD)
    for position in range(2):
        await log.append(position, b"entry")
    assert len(await other.read(0)) == 2
    await log.append(2, b"entry")
    await log.append(3, b"entry")
    place.damage.expire(SHARD, [2])
    other._items._requests.server_time.is_right = lambda _: False  # type: ignore[attr-defined]
    with pytest.raises(LogGap, match="no entry 2"):
        await other.read(2)
    assert await other.last() == (3, b"entry")


async def test_a_position_that_has_expired_gets_no_mark(
    place: TablePlace, unstriped: TablePlace, clock: FakeClock
) -> None:
    """A process that slept for weeks may still try its position. A mark there would mislead all others."""
    log = unstriped.open(clock).log(SHARD)
    for position in range(4):
        await log.append(position, b"entry")
    unstriped.damage = TableDamage(place.client, place.table)
    unstriped.damage.expire(SHARD, [0, 1])
    late = place.open(clock).log(SHARD)
    assert await late.append(0, b"late") == b"late"
    assert [item["entry"]["B"] for item in items_of(place, f"LOG#{SHARD}")] == [b"late", b"entry", b"entry"]


async def test_a_process_that_reads_the_end_asks_all_stripes_when_there_is_more(
    place: TablePlace, clock: FakeClock
) -> None:
    log, other = place.open(clock).log(SHARD), place.open(clock).log(SHARD)
    for position in range(50):
        await log.append(position, b"%d" % position)
        if position % 7 == 0:
            start = max(0, position - 6)
            assert list(await other.read(start)) == [b"%d" % each for each in range(start, position + 1)]
    assert list(await other.read(3, limit=10)) == [b"%d" % each for each in range(3, 13)]


async def test_a_process_that_knows_the_last_entry_sees_a_later_one(place: TablePlace, clock: FakeClock) -> None:
    log, other = place.open(clock).log(SHARD), place.open(clock).log(SHARD)
    for position in range(8):
        await log.append(position, b"%d" % position)
        assert await other.last() == await other.last() == (position, b"%d" % position)
    for position in range(8, 11):
        await log.append(position, b"%d" % position)
    assert await other.last() == (10, b"10")


async def test_two_that_make_the_mark_at_once_agree(place: TablePlace, clock: FakeClock) -> None:
    logs = [place.open(clock).log(SHARD) for _ in range(4)]
    stands = await asyncio.gather(*(log.append(0, b"%d" % number) for number, log in enumerate(logs)))
    assert len(set(stands)) == 1
    assert [list(await log.read(0)) for log in logs] == [[stands[0]]] * 4
