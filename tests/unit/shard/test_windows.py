"""The window of a process: the numbers of its calls that it may still repeat."""

from __future__ import annotations

from dispatcher.model.commands import call_id
from dispatcher.shard.state.records import ACCEPTED_KEPT, Process
from tests.support.world.lone_shard import T0, LoneShard


def accept(shard: LoneShard, number: int, floor: int) -> None:
    shard.do(shard.new_call("a", 1.0, id=call_id("p", number), floor=floor, deadline_at=T0 + 1e6))


def process_of(shard: LoneShard) -> Process:
    return shard.shard.state.processes["p"]


def test_numbers_below_the_floor_are_dropped() -> None:
    shard = LoneShard()
    for number in range(1, 5 * ACCEPTED_KEPT):
        accept(shard, number, max(0, number - 10))
        assert len(process_of(shard).accepted) <= ACCEPTED_KEPT + 1


def test_a_process_with_thousands_of_open_calls_is_seldom_looked_through() -> None:
    shard = LoneShard()
    windows = set()
    kept = []
    for number in range(1, 5 * ACCEPTED_KEPT):
        accept(shard, number, 0)
        kept.append(process_of(shard).accepted)
        windows.add(id(kept[-1]))
    assert len(process_of(shard).repeatable()) == 5 * ACCEPTED_KEPT - 1
    assert len(windows) <= 4


def test_a_repeated_number_is_known_from_its_floor_or_its_window() -> None:
    shard = LoneShard()
    for number in (1, 2, 3):
        accept(shard, number, number - 1)
    for number in (1, 2, 3):
        accept(shard, number, 0)
        assert shard.facts == ()
