"""Snapshots: the newest complete one is used, whatever became of the others."""

from __future__ import annotations

from random import Random

import pytest

from dispatcher.ports import Log
from dispatcher.stores.snapshot_parts import PART_BYTES_MAX
from tests.conformance.store_backends import Place
from tests.conformance.store_world import SHARD


def state(size: int) -> bytes:
    return Random(size).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES_MAX, PART_BYTES_MAX + 1, 3 * PART_BYTES_MAX + 7])
async def test_a_snapshot_is_read_as_it_was_written(log: Log, size: int) -> None:
    await log.save_snapshot(7, "nonce", state(size))
    assert await log.load_snapshot() == (7, state(size))


async def test_the_newest_position_counts_whatever_the_order_of_writing(log: Log) -> None:
    for position in (9, 10, 1):
        await log.save_snapshot(position, f"n{position}", b"%d" % position)
    assert await log.load_snapshot() == (10, b"10")


async def test_two_snapshots_of_one_position_do_not_mix(log: Log) -> None:
    """Two followers may write at the same time. Their states are equal, their compressed bytes need not be."""
    first, second = state(2 * PART_BYTES_MAX), state(2 * PART_BYTES_MAX + 5)
    await log.save_snapshot(3, "a", first)
    await log.save_snapshot(3, "b", second)
    assert await log.load_snapshot() == (3, second)


@pytest.mark.parametrize("harm", ["tear", "flip", "unfinish"])
async def test_an_older_snapshot_is_used_if_the_newest_is_no_good(place: Place, log: Log, harm: str) -> None:
    for position in (1, 2, 3):
        await log.save_snapshot(position, "n", bytes([position]) * 2 * PART_BYTES_MAX)
    for spoilt, left in ((3, 2), (2, 1)):
        getattr(place.damage, harm)(SHARD, spoilt)
        assert await log.load_snapshot() == (left, bytes([left]) * 2 * PART_BYTES_MAX)
    getattr(place.damage, harm)(SHARD, 1)
    assert await log.load_snapshot() is None


async def test_many_torn_snapshots_do_not_hide_a_good_one(place: Place, log: Log) -> None:
    for position in range(10):
        await log.save_snapshot(position, "n", b"state %d" % position)
    for position in range(1, 10):
        place.damage.tear(SHARD, position)
    assert await log.load_snapshot() == (0, b"state 0")


async def test_snapshots_and_entries_do_not_meet(log: Log) -> None:
    await log.save_snapshot(0, "n", b"state")
    assert await log.last() is None
    assert await log.append(0, b"entry") == b"entry"
    assert list(await log.read(0)) == [b"entry"]
    assert await log.load_snapshot() == (0, b"state")
