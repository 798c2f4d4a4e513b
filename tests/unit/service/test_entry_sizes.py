"""An entry at its size limit: its commands are split, or refused with a reason, and nothing is lost."""

from __future__ import annotations

from random import Random
from string import ascii_letters

import pytest

from dispatcher.model.commands import Offer, Over, Refused, Report, Status, Tick, Waiting
from dispatcher.model.facts import Entry
from dispatcher.service.gate import deciding
from dispatcher.service.gate import replica as replica_module
from dispatcher.shard.codec import encode_entry
from dispatcher.shard.snapshot import dump
from dispatcher.shard.state import indexes
from dispatcher.stores.layout import ENTRY_BYTES_MAX
from tests.support.world.lone_shard import LoneShard
from tests.support.world.processes import SHARD, World, accept, report


async def test_commands_above_the_size_of_an_entry_are_split(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "ENTRY_FULL", 700)
    one = world.replica("one")
    await one.commit([report("w", 3)])
    now = world.clock.now()
    names = ["".join(Random(number).choices(ascii_letters, k=100)) for number in range(1, 10)]
    calls = [accept(f"one-{number}", "one", now, app=name) for number, name in enumerate(names, 1)]
    committed = await one.commit(calls)
    assert [type(outcome) for outcome in committed.outcomes] == [Offer] * 3 + [Waiting] * 6
    assert [outcome.id for outcome in committed.outcomes] == [call.id for call in calls]  # type: ignore[union-attr]
    sizes = [len(entry) for entry in world.data.logs[SHARD].entries.values()]
    assert len(sizes) > 2
    assert max(sizes) <= 700
    assert dump(one.shard) == dump((await world.folded()).shard)


async def test_a_command_that_fits_into_no_entry_is_refused_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "ENTRY_FULL", 700)
    one = world.replica("one")
    await one.commit([report("w", 3)])
    now = world.clock.now()
    large = accept("one-2", "one", now, app="".join(chr(0x4E00 + number) for number in range(900)))
    first, refused, last = (
        await one.commit([accept("one-1", "one", now), large, accept("one-3", "one", now)])
    ).outcomes
    assert isinstance(first, Offer)
    assert isinstance(last, Offer)
    assert refused == Refused("one-2", "too_large", "This command does not fit into an entry of the log.", 0.0)
    (status,) = (await one.commit([Status("one-1")])).outcomes
    assert isinstance(status, Offer)
    assert "one-2" not in one.shard.state.calls


async def test_an_error_in_the_second_entry_of_a_split_ends_no_command_of_the_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "ENTRY_FULL", 700)
    one = world.replica("one")
    await one.commit([report("w", 8)])
    now, encoded = world.clock.now(), list[int]()

    def encode(entry: Entry, of_format: int, *, checked: bool) -> bytes:
        encoded.append(len(entry.facts))
        if len(encoded) == 3:  # the first is too large, and the second is of the first half
            raise KeyError("once")
        return encode_entry(entry, of_format, checked=checked)

    monkeypatch.setattr(deciding, "encode_entry", encode)
    names = ["".join(Random(number).choices(ascii_letters, k=100)) for number in range(1, 9)]
    calls = [accept(f"one-{number}", "one", now, app=name) for number, name in enumerate(names, 1)]
    outcomes = (await one.commit(calls)).outcomes
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Offer)] == [call.id for call in calls]
    assert len(encoded) > 3
    assert dump(one.shard) == dump((await world.folded()).shard)


def test_many_deadlines_in_one_moment_expire_in_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "DUE_MAX", 4)
    shard = LoneShard()
    shard.call("blocker")
    names = [shard.call("a", wait_s=10.0) for _ in range(10)]
    late = shard.now + 11
    expired = []
    while shard.shard.next_tick() <= late:
        shard.do(Tick(), late)
        expired.append(len(shard.facts))
    assert expired == [4, 4, 2]
    assert [shard.status(name) for name in names] == [Over(name, 0, "expired") for name in names]


def test_the_largest_decisions_of_one_command_fit_into_an_entry() -> None:
    """A worker of 1,024 slots joins while calls of tenants with the longest names wait."""
    shard = LoneShard()
    for number in range(1_100):
        name = f"{number}".ljust(64, "t")
        shard.call(name, app=f"{number}".ljust(64, "a"), cost=number / 7, wait_s=100.0, rate_per_s=1 / 3)
    joined = Report("w" * 64, "http://" + "h" * 200, "m", 1024, 0, 1.0, 10.0, False, 0.0, 0, ())
    shard.do(joined)
    assert len(shard.facts) == 1 + 1024
    assert size_of(shard) < ENTRY_BYTES_MAX / 4


def size_of(shard: LoneShard) -> int:
    return len(encode_entry(Entry(1, shard.now, "w", "", 0, shard.facts)))
