"""A leader's garbage collections: each object is visited once, and frozen cycles have a bound."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.service.garbage import BLOCKS_LEAST, GROWTH, GROWTH_MAX, Garbage
from tests.support.world.lone_shard import LoneShard


class FakeCollector:
    """Python's collector, as far as it counts: the objects that a collection visits."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.young = self.frozen = 0
        self.visits: list[int] = []

    def freeze(self) -> None:
        self.frozen, self.young = self.frozen + self.young, 0

    def unfreeze(self) -> None:
        self.young, self.frozen = self.young + self.frozen, 0

    def collect(self, generation: int = 2) -> int:
        self.visits.append(self.young)
        for callback in list(self.callbacks):
            callback("stop", {"generation": generation})
        return 0


class World:
    def __init__(self) -> None:
        self.collector, self.blocks = FakeCollector(), 1_000_000
        self.garbage = Garbage(self.collector, lambda: self.blocks)


def test_a_sweep_visits_only_what_was_made_since_the_last_one() -> None:
    world = World()
    world.collector.young = 1_000_000
    world.garbage.lead()
    for number in range(10):
        world.collector.young += number
        world.garbage.sweep(is_idle=True)
    assert world.collector.visits == list(range(10)), "never the state from before the takeover"
    assert world.garbage.whole == 0


def test_the_survivors_of_pythons_own_collections_are_not_visited_again() -> None:
    world = World()
    world.garbage.lead()
    world.collector.young = 700
    world.collector.collect(0)
    world.garbage.sweep(is_idle=False)
    assert world.collector.visits == [700, 0]


@pytest.mark.parametrize(("is_idle", "growth"), [(True, GROWTH), (False, GROWTH_MAX)])
def test_everything_is_visited_when_the_memory_has_grown(is_idle: bool, growth: float) -> None:
    world = World()
    world.garbage.lead()
    world.collector.young = 500
    world.blocks = int(growth * 1_000_000) + BLOCKS_LEAST
    world.garbage.sweep(is_idle=is_idle)
    assert (world.garbage.whole, world.collector.visits) == (0, [500])
    world.blocks += 1
    world.garbage.sweep(is_idle=is_idle)
    assert (world.garbage.whole, world.collector.visits) == (1, [500, 500])
    world.garbage.sweep(is_idle=is_idle)
    assert world.garbage.whole == 1, "again only after the next growth"


def test_a_process_that_leads_no_more_collects_as_usual() -> None:
    world = World()
    world.garbage.lead()
    world.garbage.lead()
    world.collector.young = 5
    world.garbage.follow()
    world.garbage.follow()
    world.garbage.sweep(is_idle=True)
    world.collector.collect()
    assert (world.collector.callbacks, world.collector.frozen, world.collector.visits) == ([], 0, [5])


@pytest.fixture
def leading() -> Iterator[Garbage]:
    garbage = Garbage()
    garbage.lead()
    yield garbage
    garbage.follow()


def test_python_itself_visits_no_frozen_object(leading: Garbage) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    kept = [Cycle() for _ in range(10)]
    leading.sweep(is_idle=False)
    assert not any(isinstance(each, Cycle) for each in gc.get_objects())
    kept.append(Cycle())
    assert sum(isinstance(each, Cycle) for each in gc.get_objects()) == 1


def test_calls_and_forgotten_tenants_leave_no_cycle() -> None:
    shard = LoneShard()
    traffic(shard)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            traffic(shard)
        assert len(shard.shard.state.tenants) < 10, "the tenants of the first rounds are forgotten"
        assert gc.collect() == 0
    finally:
        gc.enable()


def traffic(shard: LoneShard) -> None:
    """Let calls of many tenants wait, run and end, until the tenants are forgotten."""
    running = [shard.call(f"t{number}", interaction="i") for number in range(50)]
    for name in running:
        shard.end(name)
    for _ in range(130):
        shard.now += 1.0
        shard.end(shard.call("always"))
