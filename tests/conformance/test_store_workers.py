from __future__ import annotations

from dataclasses import replace

from dispatcher.model.old_fleet import SEATS_MAX
from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Written
from tests.conformance.store_world import POOL, START, World, invocation, worker

FULL = worker(
    "w",
    slots=3,
    context_tokens=4096,
    bytes_per_token=3.7,
    kv_use=0.25,
    queue_length=4,
    service_per_s=1234.5,
    live=frozenset({"a/i#1", "b/j#2"}),
)


async def test_a_worker_takes_a_seat_and_is_seen(world: World) -> None:
    assert await world.store.register(FULL) == FULL
    assert list(await world.store.workers(POOL)) == [FULL]
    assert (await world.store.snapshot(POOL, "a")).workers == (FULL,)
    assert list(await world.store.workers("another")) == []


async def test_seats_are_given_in_turn_until_they_are_all_taken(world: World) -> None:
    for number in range(SEATS_MAX):
        seated = await world.store.register(worker(f"w{number}"))
        assert seated is not None
        assert seated.seat == number
    assert await world.store.register(worker("late")) is None
    assert len((await world.store.snapshot(POOL, "a")).workers) == SEATS_MAX
    world.clock.time = START + 1000
    seated = await world.store.register(worker("late", alive_until=START + 2000))
    assert seated is not None
    assert seated.id == "late"
    assert sum(one.id == "late" for one in await world.store.workers(POOL)) == 1


async def test_an_own_seat_is_taken_again_with_its_leases(world: World) -> None:
    await world.store.register(worker("other"))
    await world.store.register(worker())
    await world.admitted(invocation("i"), Slot("w", 0))
    again = await world.store.register(worker(slots=5))
    assert again is not None
    assert (again.seat, again.slots) == (1, 5)
    assert [lease.execution for lease in again.leases.values()] == ["a/i#1"]


async def test_a_dead_workers_seat_is_kept_while_leases_stand_for_its_work(world: World) -> None:
    await world.store.register(worker(alive_until=START + 1))
    running = await world.admitted(invocation("i"), Slot("w", 0))
    world.clock.time = START + 10
    seated = await world.store.register(worker("next", alive_until=START + 99))
    assert seated is not None
    assert seated.seat == 1
    await world.settle(running)
    third = await world.store.register(worker("third", alive_until=START + 99))
    assert third is not None
    assert third.seat == 0


async def test_a_beat_renews_and_returns_the_leases(world: World) -> None:
    seated = await world.store.register(worker())
    assert seated is not None
    running = await world.admitted(invocation("i"), Slot("w", 1))
    reported = replace(seated, alive_until=START + 2000, draining=True, kv_use=0.5, live=frozenset({"a/i#1"}))
    renewed = await world.store.heartbeat(reported)
    assert renewed is not None
    assert {number: lease.execution for number, lease in renewed.leases.items()} == {1: "a/i#1"}
    assert replace(renewed, leases={}) == reported
    assert await world.store.workers(POOL) == [renewed] or list(await world.store.workers(POOL)) == [renewed]
    await world.settle(running)
    assert (await world.store.heartbeat(reported)) == reported


async def test_a_beat_on_a_lost_seat_is_none(world: World) -> None:
    assert await world.store.heartbeat(worker()) is None
    seated = await world.store.register(worker(alive_until=START + 1))
    assert seated is not None
    world.clock.time = START + 2
    await world.store.register(worker("other"))
    assert await world.store.heartbeat(seated) is None
    assert [one.id for one in await world.store.workers(POOL)] == ["other"]


async def test_a_worker_that_leaves_frees_its_seat(world: World) -> None:
    seated = await world.store.register(worker())
    assert seated is not None
    await world.store.leave(replace(seated, id="not it"))
    assert len(await world.store.workers(POOL)) == 1
    await world.store.leave(seated)
    await world.store.leave(seated)
    assert list(await world.store.workers(POOL)) == []


async def test_a_worker_that_leaves_with_work_stays_until_it_is_reaped(world: World) -> None:
    seated = await world.store.register(worker())
    assert seated is not None
    await world.admitted(invocation("i"), Slot("w", 0))
    await world.store.leave(seated)
    (left,) = await world.store.workers(POOL)
    assert not left.takes_work(START)
    assert await world.leases() == {("w", 0): "a/i#1"}
    assert (await world.admit(invocation("j"), Slot("w", 1)))[0] is Written.CONFLICT


async def test_slots_are_exactly_those_leased(world: World) -> None:
    seated = await world.store.register(worker(slots=12))
    assert seated is not None
    for number in (0, 3, 11):
        await world.admitted(invocation(f"{number}"), Slot("w", number))
    (now,) = await world.store.workers(POOL)
    assert now.free_slots() == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert await world.leases() == {("w", 0): "a/0#1", ("w", 3): "a/3#1", ("w", 11): "a/11#1"}
