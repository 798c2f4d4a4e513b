"""Hedged appends and reads on the memory store, in a loop with a time that the test advances."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeVar

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.stores.hedged_log import HEDGE_AFTER_S, HEDGED_SHARE_MAX, HEDGES_SAVED_MAX, HedgedLog
from dispatcher.stores.memory.log import MemoryLog
from dispatcher.stores.memory.store import MemoryStore

T = TypeVar("T")


class StepClock:
    """Time passes only when nothing else can happen: `sleep` waits in order of its end."""

    def __init__(self) -> None:
        self.time = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.time + seconds, woken))
        await woken.wait()

    async def finish(self, work: asyncio.Future[T]) -> T:
        while not work.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if not work.done():
                self._sleepers.sort(key=lambda sleeper: sleeper[0])
                self.time, woken = self._sleepers.pop(0)
                woken.set()
        return work.result()


class Delays:
    """Each request takes the next delay before it is applied, and the next after it. None: it fails."""

    def __init__(self, clock: StepClock, *delays: tuple[float | None, float | None]) -> None:
        self._clock, self._delays = clock, deque(delays)
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
            await self._clock.sleep(seconds)


class World:
    def __init__(self, *delays: tuple[float | None, float | None], throttled: bool = False) -> None:
        self.clock = StepClock()
        self.store = MemoryStore(self.clock)
        self.inner: MemoryLog = self.store.log("s")
        self.log = HedgedLog(self.inner, self.clock, lambda: throttled)
        self.store.faults = Delays(self.clock, *delays)

    async def append(self, position: int, entry: bytes) -> bytes:
        return await self.clock.finish(asyncio.ensure_future(self.log.append(position, entry)))


async def test_a_fast_append_is_not_repeated() -> None:
    world = World((HEDGE_AFTER_S / 2, 0.0))
    assert await world.append(0, b"x") == b"x"
    assert (world.log.hedges, world.clock.time) == (0, HEDGE_AFTER_S / 2)


@pytest.mark.parametrize("slow", [(1.0, 0.0), (0.0, 1.0)])
async def test_a_slow_append_is_repeated_and_the_first_answer_counts(slow: tuple[float, float]) -> None:
    world = World(slow, (0.001, 0.0))
    assert await world.append(0, b"x") == b"x"
    assert world.log.hedges == 1
    assert world.clock.time == pytest.approx(HEDGE_AFTER_S + 0.001)
    assert list(await world.inner.read(0)) == [b"x"]


async def test_a_slow_read_is_repeated() -> None:
    world = World()
    await world.append(0, b"x")
    world.store.faults = Delays(world.clock, (1.0, 0.0), (0.001, 0.0))
    entries = await world.clock.finish(asyncio.ensure_future(world.log.read(0)))
    assert list(entries) == [b"x"]
    assert world.log.hedges == 1
    assert world.clock.time == pytest.approx(HEDGE_AFTER_S + 0.001)


async def test_a_slow_loser_gets_the_winners_entry() -> None:
    world = World()
    await world.append(0, b"winner")
    world.store.faults = Delays(world.clock, (0.0, 1.0), (0.001, 0.0))
    assert await world.append(0, b"loser") == b"winner"


async def test_one_failure_of_two_does_not_matter() -> None:
    for delays in ([(0.02, None), (0.02, 0.0)], [(0.05, 0.0), (None, 0.0)]):
        world = World(*delays)
        assert await world.append(0, b"x") == b"x"
        assert world.log.hedges == 1


async def test_two_failures_are_a_failure() -> None:
    world = World((0.02, None), (None, 0.0))
    with pytest.raises(StoreUnavailable):
        await world.append(0, b"x")


async def test_nothing_is_repeated_while_the_store_throttles() -> None:
    world = World((1.0, 0.0), throttled=True)
    assert await world.append(0, b"x") == b"x"
    assert (world.log.hedges, world.clock.time) == (0, 1.0)


async def test_the_share_of_repeats_is_bounded() -> None:
    world = World()
    for number in range(400):
        world.store.faults = Delays(world.clock, (0.1, 0.0), (0.1, 0.0))
        assert await world.append(number, b"%d" % number) == b"%d" % number
    world.store.faults = None  # the last append may have left a delay
    assert 400 * HEDGED_SHARE_MAX <= world.log.hedges <= 400 * HEDGED_SHARE_MAX + HEDGES_SAVED_MAX
    assert len(await world.inner.read(0)) == 400


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
