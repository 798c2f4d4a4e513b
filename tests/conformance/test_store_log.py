"""The log: a position is written once, and a read shows what was acknowledged before it."""

from __future__ import annotations

import pytest

from dispatcher.model.errors import EntryTooLarge, LogGap
from dispatcher.ports import Log, Store
from dispatcher.stores.layout import CUT_AFTER_S, ENTRY_BYTES_MAX
from tests.conformance.store_backends import Place
from tests.conformance.store_world import SHARD, FakeClock

ENTRIES = [b"zero", b"", b"\x00\xff" * 10, b"three"]
WEEK_S = 7 * 24 * 3600.0
"""So long after it was written an entry expires."""


async def written(log: Log, entries: list[bytes]) -> None:
    for position, entry in enumerate(entries):
        assert await log.append(position, entry) == entry


async def test_an_empty_log_has_nothing(log: Log) -> None:
    assert list(await log.read(0)) == []
    assert await log.last() is None
    assert await log.load_snapshot() is None


async def test_entries_are_read_as_they_were_written(log: Log) -> None:
    await written(log, ENTRIES)
    assert list(await log.read(0)) == ENTRIES
    assert list(await log.read(2)) == ENTRIES[2:]
    assert list(await log.read(1, limit=2)) == ENTRIES[1:3]
    assert list(await log.read(len(ENTRIES))) == []
    assert await log.last() == (3, ENTRIES[3])


async def test_the_loser_of_a_position_gets_the_winners_entry(log: Log) -> None:
    await written(log, [b"a"])
    assert await log.append(0, b"b") == b"a"
    assert await log.append(1, b"b") == b"b"
    assert list(await log.read(0)) == [b"a", b"b"]


async def test_a_repeated_append_finds_its_own_entry(log: Log) -> None:
    await written(log, [b"a", b"b"])
    assert await log.append(0, b"a") == b"a"
    assert list(await log.read(0)) == [b"a", b"b"]


async def test_positions_sort_as_numbers(log: Log) -> None:
    entries = [f"{number}".encode() for number in range(12)]
    await written(log, entries)
    assert list(await log.read(8)) == entries[8:]
    assert await log.last() == (11, b"11")


async def test_shards_have_logs_of_their_own(store: Store) -> None:
    names = [SHARD, SHARD + "0", "POOL-0", "a.b_c-" + "d" * 58]
    for name in names:
        assert await store.log(name).append(0, name.encode()) == name.encode()
    assert [list(await store.log(name).read(0)) for name in names] == [[name.encode()] for name in names]


@pytest.mark.parametrize("name", ["", "a#b", "a/b", "é", "a" * 65, "a\n"])
def test_a_name_that_is_no_shards_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 of"):
        store.log(name)


async def test_another_process_sees_what_was_acknowledged(place: Place, log: Log, clock: FakeClock) -> None:
    other = place.open(clock)
    for number in range(5):
        await log.append(number, b"%d" % number)
        assert await other.log(SHARD).last() == (number, b"%d" % number)
        assert len(await other.log(SHARD).read(0)) == number + 1
    await other.close()


async def test_an_entry_at_the_limit_is_kept_and_one_above_it_refused(log: Log) -> None:
    largest = bytes(range(256)) * (ENTRY_BYTES_MAX // 256)
    largest += b"x" * (ENTRY_BYTES_MAX - len(largest))
    assert await log.append(0, largest) == largest
    assert await log.append(0, b"other") == largest
    with pytest.raises(EntryTooLarge, match=r"Entry 1 has 380001 bytes.*fewer commands"):
        await log.append(1, largest + b"x")
    assert await log.last() == (0, largest)


async def test_a_read_of_several_pages_has_no_gap(log: Log) -> None:
    """DynamoDB answers at most 1 MB at once."""
    large = [bytes([number]) * 300_000 for number in range(8)]
    await written(log, large)
    assert list(await log.read(0)) == large
    assert list(await log.read(1, limit=6)) == large[1:7]


async def test_a_missing_entry_is_a_gap(place: Place, log: Log, clock: FakeClock) -> None:
    await written(log, ENTRIES)
    clock.time += WEEK_S
    place.damage.expire(SHARD, [0, 2])
    for position in (0, 2):
        with pytest.raises(LogGap, match=f"{SHARD} has no entry {position}.*snapshot"):
            await log.read(position)
    with pytest.raises(LogGap, match=f"{SHARD} has no entry 2"):
        await log.read(1)
    assert list(await log.read(1, limit=1)) == [ENTRIES[1]]
    assert list(await log.read(3)) == [ENTRIES[3]]
    assert list(await log.read(4)) == []


async def test_a_lost_tail_is_no_gap(place: Place, log: Log, clock: FakeClock) -> None:
    """The log cannot know of entries that expired behind its last one."""
    await written(log, ENTRIES)
    clock.time += WEEK_S
    place.damage.expire(SHARD, [2, 3])
    assert await log.last() == (1, ENTRIES[1])
    assert list(await log.read(2)) == []


async def test_a_cut_keeps_what_is_younger_than_a_day(log: Log, clock: FakeClock) -> None:
    await written(log, ENTRIES)
    await log.save_snapshot(2, "n", b"two")
    clock.time += CUT_AFTER_S - 1
    await log.cut(4)
    assert list(await log.read(0)) == ENTRIES
    assert await log.load_snapshot() == (2, b"two")


async def test_a_cut_keeps_what_is_above_it(log: Log, clock: FakeClock) -> None:
    await written(log, ENTRIES)
    await log.save_snapshot(1, "n", b"one")
    await log.save_snapshot(2, "n", b"two")
    clock.time += CUT_AFTER_S
    await log.cut(2)
    assert list(await log.read(2)) == ENTRIES[2:]
    assert await log.load_snapshot() == (2, b"two")
