"""Hedged appends and reads on the memory store, in virtual time."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.stores.hedged_log import HEDGE_AFTER_S, HEDGED_SHARE_MAX, HEDGES_SAVED_MAX, HedgedLog
from tests.support.world.memory_store import MemoryLog, MemoryStore
from tests.support.world.processes import in_virtual_time
from tests.support.world.virtual_time import LoopClock


class Delays:
    """Each request takes the next delay before it is applied, and the next after it. None: it fails."""

    def __init__(self, *delays: tuple[float | None, float | None]) -> None:
        self._delays = deque(delays)
        self._after: dict[asyncio.Task[object] | None, float | None] = {}

    async def before(self, operation: str) -> None:
        before, after = self._delays.popleft() if self._delays else (0.0, 0.0)
        self._after[asyncio.current_task()] = after
        await self._pass(before)

    async def after(self, operation: str) -> None:
        await self._pass(self._after.pop(asyncio.current_task()))

    async def _pass(self, seconds: float | None) -> None:
        if seconds is None:
            raise StoreUnavailable()
        if seconds:
            await asyncio.sleep(seconds)


class World:
    def __init__(self, *delays: tuple[float | None, float | None], throttled: bool = False) -> None:
        self.clock = LoopClock()
        self.began_at = self.clock.monotonic()
        self.store = MemoryStore(self.clock)
        self.inner: MemoryLog = self.store.log("s")
        self.log = HedgedLog(self.inner, lambda: throttled)
        self.store.faults = Delays(*delays)

    @property
    def took_s(self) -> float:
        return self.clock.monotonic() - self.began_at


@in_virtual_time()
async def test_a_fast_append_is_not_repeated() -> None:
    world = World((HEDGE_AFTER_S / 2, 0.0))
    assert await world.log.append(0, b"x") == b"x"
    assert world.log.hedges == 0
    assert world.took_s == pytest.approx(HEDGE_AFTER_S / 2)


@pytest.mark.parametrize("slow", [(1.0, 0.0), (0.0, 1.0)])
@in_virtual_time()
async def test_a_slow_append_is_repeated_and_the_first_answer_counts(slow: tuple[float, float]) -> None:
    world = World(slow, (0.001, 0.0))
    assert await world.log.append(0, b"x") == b"x"
    assert world.log.hedges == 1
    assert world.took_s == pytest.approx(HEDGE_AFTER_S + 0.001)
    assert list(await world.inner.read(0)) == [b"x"]


@in_virtual_time()
async def test_a_slow_read_is_repeated() -> None:
    world = World()
    await world.log.append(0, b"x")
    world.store.faults = Delays((1.0, 0.0), (0.001, 0.0))
    entries = await world.log.read(0)
    assert list(entries) == [b"x"]
    assert world.log.hedges == 1
    assert world.took_s == pytest.approx(HEDGE_AFTER_S + 0.001)


@in_virtual_time()
async def test_a_slow_loser_gets_the_winners_entry() -> None:
    world = World()
    await world.log.append(0, b"winner")
    world.store.faults = Delays((0.0, 1.0), (0.001, 0.0))
    assert await world.log.append(0, b"loser") == b"winner"


@in_virtual_time()
async def test_one_failure_of_two_does_not_matter() -> None:
    for delays in ([(0.02, None), (0.02, 0.0)], [(0.05, 0.0), (None, 0.0)]):
        world = World(*delays)
        assert await world.log.append(0, b"x") == b"x"
        assert world.log.hedges == 1


@in_virtual_time()
async def test_two_failures_are_a_failure() -> None:
    world = World((0.02, None), (None, 0.0))
    with pytest.raises(StoreUnavailable):
        await world.log.append(0, b"x")


@in_virtual_time()
async def test_nothing_is_repeated_while_the_store_throttles() -> None:
    world = World((1.0, 0.0), throttled=True)
    assert await world.log.append(0, b"x") == b"x"
    assert world.log.hedges == 0
    assert world.took_s == pytest.approx(1.0)


@in_virtual_time()
async def test_the_share_of_repeats_is_bounded() -> None:
    world = World()
    for number in range(400):
        world.store.faults = Delays((0.1, 0.0), (0.1, 0.0))
        assert await world.log.append(number, b"%d" % number) == b"%d" % number
    world.store.faults = None  # the last append may have left a delay
    assert 400 * HEDGED_SHARE_MAX <= world.log.hedges <= 400 * HEDGED_SHARE_MAX + HEDGES_SAVED_MAX
    assert len(await world.inner.read(0)) == 400


@in_virtual_time()
async def test_a_cancelled_append_cancels_its_requests() -> None:
    world = World((1.0, 0.0), (1.0, 0.0))
    work = asyncio.ensure_future(world.log.append(0, b"x"))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.inner.data.end == 0
