"""The agent against the store's own seats: joins, beats, obeys, gives up in time, drains, leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import SEATS_MAX, Worker
from dispatcher.model.invocation import Slot
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.service.agent import Agent, AgentSettings, NoSeat
from tests.support.virtual_time import START, run
from tests.support.worker_house import POOL, WORKER, House, order

SETTINGS = AgentSettings()
LONG = order(max_tokens=900, deadline_at=START + 1000)


@dataclass
class Away:
    """A table that cannot be reached: every request hangs for `hangs_s`, then `error` is all that is known."""

    hangs_s: float = 0.0
    error: type[Exception] = StoreUnavailable

    async def before(self, operation: str) -> None:
        await asyncio.sleep(self.hangs_s)
        raise self.error()

    async def after(self, operation: str) -> None:
        return None


@asynccontextmanager
async def heartbeating(house: House) -> AsyncIterator[House]:
    """Joined, and serving; `house.stop` is the signal, `house.serving` what then drains."""
    await house.agent.join()
    house.serving = asyncio.ensure_future(house.agent.serve(house.stop.wait()))
    try:
        yield house
        assert house.stop.is_set() or not house.serving.done(), "the beats ended"
    finally:
        house.serving.cancel()
        await asyncio.wait({house.serving})


async def drained(house: House) -> None:
    house.stop.set()
    await house.serving


async def seats(house: House) -> list[Worker]:
    house.store.faults = None
    return list(await house.store.workers(POOL))


async def alive(house: House) -> list[Worker]:
    return [worker for worker in await seats(house) if worker.takes_work(house.clock.now())]


class TestBeats:
    def test_it_stays_alive_and_tells_its_load(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                reading = house.start(LONG)
                await house.leased(LONG)
                house.engine.waiting = 3
                await asyncio.sleep(60)
                (seen,) = await alive(house)
                assert (seen.kv_use, seen.queue_length, seen.live) == (0.5, 3, frozenset({"a/i#1"}))
                assert seen.service_per_s == pytest.approx(20, rel=0.1)  # 2 each 0.1 s
                assert seen.alive_until > house.clock.now() + SETTINGS.lease_s - 1.2 * SETTINGS.heartbeat_s - 0.01
                reading.cancel()

        run(story())

    def test_beats_are_jittered(self) -> None:
        async def story(seed: int) -> list[float]:
            house = House()
            house.agent.random = Random(seed)
            told: list[float] = []
            whole = house.store.heartbeat

            async def noted(worker: Worker) -> Worker | None:
                told.append(house.clock.now())
                return await whole(worker)

            house.store.heartbeat = noted  # type: ignore[method-assign]
            async with heartbeating(house):
                await asyncio.sleep(40)
            return [after - before for before, after in pairwise(told)]

        one, other = run(story(1)), run(story(2))
        assert one != other
        assert all(0.8 * SETTINGS.heartbeat_s <= gap <= 1.2 * SETTINGS.heartbeat_s + 0.001 for gap in one + other)

    def test_a_fault_of_our_own_does_not_end_them(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                house.store.faults = Away(error=RuntimeError)
                await asyncio.sleep(5)
                house.store.faults = None
                await asyncio.sleep(5)
                assert await alive(house)
                assert house.executions.accepting

        run(story())


class TestJoining:
    def test_tries_again_while_the_table_is_away(self) -> None:
        async def story() -> None:
            house = House()
            house.store.faults = Away()
            joining = asyncio.ensure_future(house.agent.join())
            await asyncio.sleep(20)
            assert not joining.done()
            house.store.faults = None
            await joining
            assert await alive(house)

        run(story())

    def test_and_not_for_ever(self) -> None:
        async def story() -> float:
            house = House()
            house.store.faults = Away()
            with pytest.raises(StoreUnavailable):
                await house.agent.join()
            return house.clock.now() - START

        assert SETTINGS.join_s / 2 < run(story()) <= SETTINGS.join_s

    def test_without_a_seat_it_says_so(self) -> None:
        async def story() -> None:
            house = House()
            for number in range(SEATS_MAX):
                await house.store.register(replace(WORKER, id=f"w{number}", alive_until=START + 10_000))
            with pytest.raises(NoSeat, match="all seats of pool 'default' are taken"):
                await house.agent.join()

        run(story())


class TestObeying:
    def test_a_lost_lease_aborts_the_work_unsettled(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                lease, reading = await house.leased(LONG), house.start(LONG)
                await asyncio.sleep(6)
                assert not reading.done()
                (seat,) = await seats(house)
                await house.store.free_slot(seat, Slot("w", 0), lease)
                lines = await reading
                assert b'"aborted"' in lines[-1]
                assert house.settlements.tries == 0
                assert (await alive(house))[0].takes_work(house.clock.now())

        run(story())

    def test_also_one_that_was_lost_before_any_beat_saw_it(self) -> None:
        async def story() -> float:
            async with heartbeating(House()) as house:
                lease, reading = await house.leased(LONG), house.start(LONG)
                (seat,) = await seats(house)
                await house.store.free_slot(seat, Slot("w", 0), lease)
                await reading
                return house.clock.now() - START

        assert run(story()) < 1.2 * SETTINGS.heartbeat_s + 1

    def test_nor_is_it_settled_when_its_gate_goes_away_after(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                lease, reading = await house.leased(LONG), house.start(LONG)
                house.engine.token_s = 5.0
                (seat,) = await seats(house)
                await house.store.free_slot(seat, Slot("w", 0), lease)
                await asyncio.sleep(1.2 * SETTINGS.heartbeat_s)
                assert not reading.done()
                reading.cancel()
                await house.executions.idle()
                assert house.settlements.tries == 0

        run(story())

    def test_others_are_left_alone(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                other = order("j", slot=1, max_tokens=900, deadline_at=START + 1000)
                lease, reading = await house.leased(LONG), house.start(LONG)
                await house.leased(other)
                kept = house.start(other)
                (seat,) = await seats(house)
                await house.store.free_slot(seat, Slot("w", 0), lease)
                await reading
                assert b'"length"' in (await kept)[-1]

        run(story())

    def test_a_lost_seat_aborts_everything_takes_nothing_and_registers_anew(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                reading = house.start(LONG)
                house.store._seats._pools[POOL].clear()
                lines = await reading
                assert b'"aborted"' in lines[-1]
                assert not house.executions.accepting
                await asyncio.sleep(1.2 * SETTINGS.heartbeat_s)
                assert house.executions.accepting
                assert await alive(house)
                assert house.settlements.tries == 0

        run(story())


class TestCutOff:
    @pytest.mark.parametrize("hangs_s", [0.0, 1.0, 43.0, 10_000.0])
    def test_it_aborts_before_its_lease_ends_however_the_table_fails(self, hangs_s: float) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                reading = house.start(LONG)
                await asyncio.sleep(5)
                (seat,) = await seats(house)
                house.store.faults = Away(hangs_s)
                await reading
                margin_s = seat.alive_until - house.clock.now()
                assert SETTINGS.margin_s - 1 < margin_s <= SETTINGS.margin_s
                assert not house.executions.accepting
                assert house.settlements.tries == 0

        run(story())

    def test_it_takes_work_again_when_a_beat_comes_through(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                house.store.faults = Away()
                await asyncio.sleep(30)
                assert not house.executions.accepting
                house.store.faults = None
                await asyncio.sleep(1.2 * SETTINGS.heartbeat_s)
                assert house.executions.accepting
                assert await alive(house)

        run(story())

    def test_a_short_absence_costs_nothing(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                reading = house.start(LONG)
                house.store.faults = Away()
                await asyncio.sleep(SETTINGS.lease_s - SETTINGS.margin_s - 1.2 * SETTINGS.heartbeat_s)
                house.store.faults = None
                assert b'"length"' in (await reading)[-1]

        run(story())


class TestDraining:
    def test_work_finishes_its_lease_is_kept_and_the_seat_is_free_after(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                work = order(max_tokens=200, deadline_at=START + 1000)
                await house.leased(work)
                reading = house.start(work)
                draining = asyncio.ensure_future(drained(house))
                for _ in range(19):  # of 20 s: twice the lease
                    await asyncio.sleep(1)
                    (seat,) = await seats(house)
                    assert seat.draining
                    assert seat.alive_until > house.clock.now() + SETTINGS.margin_s
                    assert not house.executions.accepting
                assert b'"length"' in (await reading)[-1]
                await draining
                assert not await alive(house)
                await asyncio.sleep(10)
                assert not await alive(house), "a beat brought it back"

        run(story())

    def test_what_does_not_finish_is_aborted_and_told(self) -> None:
        async def story() -> float:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                reading = house.start(LONG)
                await drained(house)
                assert b'"aborted"' in (await reading)[-1]
                return house.clock.now() - START

        assert SETTINGS.drain_s <= run(story()) <= SETTINGS.drain_s + 1

    def test_what_hangs_does_not_hold_it_longer_than_stated(self) -> None:
        """An engine that does not end what it is told to abort, and a table that does not answer."""

        async def story() -> float:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                house.engine.token_s = 10_000.0
                house.start(LONG)
                await asyncio.sleep(1)
                house.store.faults = Away(10_000.0)
                await drained(house)
                return house.clock.now() - START - 1

        assert run(story()) <= SETTINGS.drain_s + 2 * SETTINGS.abort_s + 0.1

    def test_an_idle_worker_is_gone_at_once_though_the_table_is_away(self) -> None:
        async def story() -> float:
            async with heartbeating(House()) as house:
                house.store.faults = Away()
                await drained(house)
                return house.clock.now() - START

        assert run(story()) == 0

    def test_a_seat_lost_meanwhile_is_not_taken_again(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                house.engine.token_s = 10_000.0  # so that the draining takes its time
                house.start(LONG)
                await asyncio.sleep(1)
                draining = asyncio.ensure_future(drained(house))
                await asyncio.sleep(1)
                house.store._seats._pools[POOL].clear()
                for _ in range(int(SETTINGS.drain_s) - 2):
                    await asyncio.sleep(1)
                    assert not await seats(house)
                assert not draining.done()
                await draining

        run(story())

    def test_a_beat_under_way_does_not_bring_back_a_seat_that_stays_for_its_leases(self) -> None:
        async def story() -> None:
            async with heartbeating(House()) as house:
                await house.leased(LONG)
                whole = house.store.heartbeat

                async def later(worker: Worker) -> Worker | None:
                    await asyncio.sleep(1)
                    return await whole(worker)

                async def in_a_thread(worker: Worker) -> Worker | None:
                    """It goes on though nobody waits for it any more."""
                    return await asyncio.shield(asyncio.ensure_future(later(worker)))

                house.store.heartbeat = in_a_thread  # type: ignore[method-assign]
                await drained(house)
                await asyncio.sleep(5)
                (seat,) = await seats(house)
                assert seat.leases
                assert seat.alive_until == 0

        run(story())


def test_where_the_beats_themselves_end_it_gives_up_its_work_and_leaves() -> None:
    async def story() -> float:
        house = House()

        async def fails() -> None:
            await asyncio.sleep(5)
            raise RuntimeError("a fault of ours")

        house.agent.run = fails  # type: ignore[method-assign]
        await house.agent.join()
        await house.leased(LONG)
        reading = house.start(LONG)
        await house.agent.serve(house.stop.wait())
        assert b'"aborted"' in (await reading)[-1]
        assert house.settlements.tries == 0
        assert not await alive(house)
        return house.clock.now() - START

    assert 5 <= run(story()) < 6


class TestCapacity:
    def test_the_best_stretch_at_whose_both_ends_it_was_full(self) -> None:
        capacity = MeasuredCapacity()
        assert capacity.observe(0, 0, saturated=True) == 0
        assert capacity.observe(2, 100, saturated=True) == 50
        assert capacity.observe(4, 1000, saturated=False) == 50  # it ran dry somewhere in between
        assert capacity.observe(6, 2000, saturated=True) == 50
        assert capacity.observe(8, 2200, saturated=True) == 100

    def test_what_is_known_outlives_the_window(self) -> None:
        capacity = MeasuredCapacity(window_s=10)
        capacity.observe(0, 0, saturated=True)
        capacity.observe(2, 100, saturated=True)
        assert capacity.observe(1000, 100, saturated=False) == 50
        capacity.observe(1002, 110, saturated=True)
        assert capacity.observe(1004, 120, saturated=True) == 5  # slower now, and nothing better in the window


def test_agents_of_one_pool_take_seats_of_their_own() -> None:
    async def story() -> set[int]:
        house = House()
        others = [
            Agent(replace(WORKER, id=f"w{n}"), house.store, house.executions, house.clock, Random(n)) for n in range(5)
        ]
        await asyncio.gather(*(agent.join() for agent in others))
        return {worker.seat for worker in await alive(house)}

    assert run(story()) == set(range(5))
