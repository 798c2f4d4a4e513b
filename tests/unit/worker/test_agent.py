"""The agent against the store's own seats: it joins, sends heartbeats, aborts in time, drains and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.old_fleet import SEATS_MAX, Worker
from dispatcher.model.old_invocation import Slot
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.service.agent import Agent, AgentSettings, NoSeat
from headgate.simulator.virtual_time import START, run
from tests.support.worker.harness import POOL, WORKER, WorkerHarness, order

SETTINGS = AgentSettings()
LONG = order(max_tokens=900, deadline_at=START + 1000)


@dataclass
class Away:
    """A table that cannot be reached: every request hangs for `hangs_s` and then raises `error`."""

    hangs_s: float = 0.0
    error: type[Exception] = StoreUnavailable

    async def before(self, operation: str) -> None:
        await asyncio.sleep(self.hangs_s)
        raise self.error()

    async def after(self, operation: str) -> None:
        return None


@asynccontextmanager
async def heartbeating(harness: WorkerHarness) -> AsyncIterator[WorkerHarness]:
    """Join and serve. `harness.stop` is the signal; `harness.serving` then drains."""
    await harness.agent.join()
    harness.serving = asyncio.ensure_future(harness.agent.serve(harness.stop.wait()))
    try:
        yield harness
        assert harness.stop.is_set() or not harness.serving.done(), "the heartbeats ended"
    finally:
        harness.serving.cancel()
        await asyncio.wait({harness.serving})


async def drained(harness: WorkerHarness) -> None:
    harness.stop.set()
    await harness.serving


async def seats(harness: WorkerHarness) -> list[Worker]:
    harness.store.faults = None
    return list(await harness.store.workers(POOL))


async def alive(harness: WorkerHarness) -> list[Worker]:
    return [worker for worker in await seats(harness) if worker.takes_work(harness.clock.now())]


class TestHeartbeats:
    def test_it_stays_alive_and_reports_its_load(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                reading = harness.start(LONG)
                await harness.leased(LONG)
                harness.engine.waiting = 3
                await asyncio.sleep(60)
                (seen,) = await alive(harness)
                assert (seen.kv_use, seen.queue_length, seen.live) == (0.5, 3, frozenset({"a/i#1"}))
                assert seen.service_per_s == pytest.approx(20, rel=0.1)  # 2 each 0.1 s
                assert seen.alive_until > harness.clock.now() + SETTINGS.lease_s - 1.2 * SETTINGS.heartbeat_s - 0.01
                reading.cancel()

        run(story())

    def test_heartbeats_are_jittered(self) -> None:
        async def story(seed: int) -> list[float]:
            harness = WorkerHarness()
            harness.agent.random = Random(seed)
            sent: list[float] = []
            whole = harness.store.heartbeat

            async def noted(worker: Worker) -> Worker | None:
                sent.append(harness.clock.now())
                return await whole(worker)

            harness.store.heartbeat = noted  # type: ignore[method-assign]
            async with heartbeating(harness):
                await asyncio.sleep(40)
            return [after - before for before, after in pairwise(sent)]

        one, other = run(story(1)), run(story(2))
        assert one != other
        assert all(0.8 * SETTINGS.heartbeat_s <= gap <= 1.2 * SETTINGS.heartbeat_s + 0.001 for gap in one + other)

    def test_a_bug_does_not_end_them(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                harness.store.faults = Away(error=RuntimeError)
                await asyncio.sleep(5)
                harness.store.faults = None
                await asyncio.sleep(5)
                assert await alive(harness)
                assert harness.executions.accepting

        run(story())


class TestJoining:
    def test_tries_again_while_the_table_is_away(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            harness.store.faults = Away()
            joining = asyncio.ensure_future(harness.agent.join())
            await asyncio.sleep(20)
            assert not joining.done()
            harness.store.faults = None
            await joining
            assert await alive(harness)

        run(story())

    def test_and_not_for_ever(self) -> None:
        async def story() -> float:
            harness = WorkerHarness()
            harness.store.faults = Away()
            with pytest.raises(StoreUnavailable):
                await harness.agent.join()
            return harness.clock.now() - START

        assert SETTINGS.join_s / 2 < run(story()) <= SETTINGS.join_s

    def test_without_a_seat_it_says_so(self) -> None:
        async def story() -> None:
            harness = WorkerHarness()
            for number in range(SEATS_MAX):
                await harness.store.register(replace(WORKER, id=f"w{number}", alive_until=START + 10_000))
            with pytest.raises(NoSeat, match="all seats of pool 'default' are taken"):
                await harness.agent.join()

        run(story())


class TestLostLeases:
    def test_a_lost_lease_aborts_the_work_unsettled(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                lease, reading = await harness.leased(LONG), harness.start(LONG)
                await asyncio.sleep(6)
                assert not reading.done()
                (seat,) = await seats(harness)
                await harness.store.free_slot(seat, Slot("w", 0), lease)
                lines = await reading
                assert b'"aborted"' in lines[-1]
                assert harness.settlements.tries == 0
                assert (await alive(harness))[0].takes_work(harness.clock.now())

        run(story())

    def test_a_lease_lost_before_the_first_heartbeat_aborts_too(self) -> None:
        async def story() -> float:
            async with heartbeating(WorkerHarness()) as harness:
                lease, reading = await harness.leased(LONG), harness.start(LONG)
                (seat,) = await seats(harness)
                await harness.store.free_slot(seat, Slot("w", 0), lease)
                await reading
                return harness.clock.now() - START

        assert run(story()) < 1.2 * SETTINGS.heartbeat_s + 1

    def test_it_is_not_settled_when_its_gate_disconnects_later(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                lease, reading = await harness.leased(LONG), harness.start(LONG)
                harness.engine.token_s = 5.0
                (seat,) = await seats(harness)
                await harness.store.free_slot(seat, Slot("w", 0), lease)
                await asyncio.sleep(1.2 * SETTINGS.heartbeat_s)
                assert not reading.done()
                reading.cancel()
                await harness.executions.idle()
                assert harness.settlements.tries == 0

        run(story())

    def test_other_executions_are_left_alone(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                other = order("j", slot=1, max_tokens=900, deadline_at=START + 1000)
                lease, reading = await harness.leased(LONG), harness.start(LONG)
                await harness.leased(other)
                kept = harness.start(other)
                (seat,) = await seats(harness)
                await harness.store.free_slot(seat, Slot("w", 0), lease)
                await reading
                assert b'"length"' in (await kept)[-1]

        run(story())

    def test_a_lost_seat_aborts_everything_takes_nothing_and_registers_anew(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                reading = harness.start(LONG)
                harness.store._seats._pools[POOL].clear()
                lines = await reading
                assert b'"aborted"' in lines[-1]
                assert not harness.executions.accepting
                await asyncio.sleep(1.2 * SETTINGS.heartbeat_s)
                assert harness.executions.accepting
                assert await alive(harness)
                assert harness.settlements.tries == 0

        run(story())


class TestCutOff:
    @pytest.mark.parametrize("hangs_s", [0.0, 1.0, 43.0, 10_000.0])
    def test_it_aborts_before_its_lease_ends_however_the_table_fails(self, hangs_s: float) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                reading = harness.start(LONG)
                await asyncio.sleep(5)
                (seat,) = await seats(harness)
                harness.store.faults = Away(hangs_s)
                await reading
                margin_s = seat.alive_until - harness.clock.now()
                assert SETTINGS.margin_s - 1 < margin_s <= SETTINGS.margin_s
                assert not harness.executions.accepting
                assert harness.settlements.tries == 0

        run(story())

    def test_it_takes_work_again_when_a_heartbeat_succeeds(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                harness.store.faults = Away()
                await asyncio.sleep(30)
                assert not harness.executions.accepting
                harness.store.faults = None
                await asyncio.sleep(1.2 * SETTINGS.heartbeat_s)
                assert harness.executions.accepting
                assert await alive(harness)

        run(story())

    def test_a_short_absence_costs_nothing(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                reading = harness.start(LONG)
                harness.store.faults = Away()
                await asyncio.sleep(SETTINGS.lease_s - SETTINGS.margin_s - 1.2 * SETTINGS.heartbeat_s)
                harness.store.faults = None
                assert b'"length"' in (await reading)[-1]

        run(story())


class TestDraining:
    def test_work_finishes_its_lease_is_kept_and_the_seat_is_free_after(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                work = order(max_tokens=200, deadline_at=START + 1000)
                await harness.leased(work)
                reading = harness.start(work)
                draining = asyncio.ensure_future(drained(harness))
                for _ in range(19):  # of 20 s: twice the lease
                    await asyncio.sleep(1)
                    (seat,) = await seats(harness)
                    assert seat.draining
                    assert seat.alive_until > harness.clock.now() + SETTINGS.margin_s
                    assert not harness.executions.accepting
                assert b'"length"' in (await reading)[-1]
                await draining
                assert not await alive(harness)
                await asyncio.sleep(10)
                assert not await alive(harness), "a heartbeat brought it back"

        run(story())

    def test_unfinished_work_is_aborted_and_its_end_sent(self) -> None:
        async def story() -> float:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                reading = harness.start(LONG)
                await drained(harness)
                assert b'"aborted"' in (await reading)[-1]
                return harness.clock.now() - START

        assert SETTINGS.drain_s <= run(story()) <= SETTINGS.drain_s + 1

    def test_a_hanging_engine_does_not_hold_it_longer_than_stated(self) -> None:
        """The engine does not end an aborted request, and the table does not answer."""

        async def story() -> float:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                harness.engine.token_s = 10_000.0
                harness.start(LONG)
                await asyncio.sleep(1)
                harness.store.faults = Away(10_000.0)
                await drained(harness)
                return harness.clock.now() - START - 1

        assert run(story()) <= SETTINGS.drain_s + 2 * SETTINGS.abort_s + 0.1

    def test_an_idle_worker_is_gone_at_once_though_the_table_is_away(self) -> None:
        async def story() -> float:
            async with heartbeating(WorkerHarness()) as harness:
                harness.store.faults = Away()
                await drained(harness)
                return harness.clock.now() - START

        assert run(story()) == 0

    def test_a_seat_lost_meanwhile_is_not_taken_again(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                harness.engine.token_s = 10_000.0  # so that the draining takes its time
                harness.start(LONG)
                await asyncio.sleep(1)
                draining = asyncio.ensure_future(drained(harness))
                await asyncio.sleep(1)
                harness.store._seats._pools[POOL].clear()
                for _ in range(int(SETTINGS.drain_s) - 2):
                    await asyncio.sleep(1)
                    assert not await seats(harness)
                assert not draining.done()
                await draining

        run(story())

    def test_a_heartbeat_under_way_does_not_bring_back_the_seat(self) -> None:
        async def story() -> None:
            async with heartbeating(WorkerHarness()) as harness:
                await harness.leased(LONG)
                whole = harness.store.heartbeat

                async def later(worker: Worker) -> Worker | None:
                    await asyncio.sleep(1)
                    return await whole(worker)

                async def in_a_thread(worker: Worker) -> Worker | None:
                    """Go on after the caller has given up."""
                    return await asyncio.shield(asyncio.ensure_future(later(worker)))

                harness.store.heartbeat = in_a_thread  # type: ignore[method-assign]
                await drained(harness)
                await asyncio.sleep(5)
                (seat,) = await seats(harness)
                assert seat.leases
                assert seat.alive_until == 0

        run(story())


def test_if_the_heartbeats_end_it_aborts_its_work_and_leaves() -> None:
    async def story() -> float:
        harness = WorkerHarness()

        async def fails() -> None:
            await asyncio.sleep(5)
            raise RuntimeError("a bug")

        harness.agent.run = fails  # type: ignore[method-assign]
        await harness.agent.join()
        await harness.leased(LONG)
        reading = harness.start(LONG)
        await harness.agent.serve(harness.stop.wait())
        assert b'"aborted"' in (await reading)[-1]
        assert harness.settlements.tries == 0
        assert not await alive(harness)
        return harness.clock.now() - START

    assert 5 <= run(story()) < 6


class TestCapacity:
    def test_the_best_stretch_that_was_full_at_both_ends(self) -> None:
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
        harness = WorkerHarness()
        others = [
            Agent(replace(WORKER, id=f"w{n}"), harness.store, harness.executions, harness.clock, Random(n))
            for n in range(5)
        ]
        await asyncio.gather(*(agent.join() for agent in others))
        return {worker.seat for worker in await alive(harness)}

    assert run(story()) == set(range(5))
