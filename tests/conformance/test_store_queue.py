"""The waiting queues and their order, V, and overdue invocations."""

from __future__ import annotations

import pytest

from dispatcher.model.old_fleet import Pool
from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Written
from dispatcher.policies.clocks import Charge, Debit, Step
from tests.conformance.store_world import POOL, START, World, invocation, later, worker


async def waits(world: World, name: str, tat: float, vft: float) -> None:
    """A line with these clocks and one waiting invocation."""
    running = await world.admitted(invocation("past", tenant=name), Slot("w", 0))
    await world.settle(running)
    charge = Charge(0.0, False, 0.0, 1.0)
    moved = Debit(charge, Step(tat, 0.0), Step(vft, 0.0), 0.0)
    again = invocation("again", tenant=name)
    _, running = await world.admit(again, Slot("unknown", 0))
    running = type(running)(
        **{field: getattr(running, field) for field in running.__dataclass_fields__ if field not in ("slot", "charge")},
        slot=Slot("w", 0),
        charge=charge,
    )
    assert await world.store.admit(running, moved, START) is Written.DONE
    over = await world.settle(running, served=0.0)
    assert over.name == "SETTLED"
    assert await world.store.enqueue(invocation("waiting", tenant=name), Step(None, 0.0), 9) is Written.DONE


async def test_those_in_profile_come_first_then_the_rest_each_by_vft(world: World) -> None:
    await world.store.register(worker(slots=1))
    queues = {
        "beyond-low": (START + 1, 1.0),
        "due-high": (START - 5, 9.0),
        "due-low": (START, 4.0),
        "beyond-high": (START + 0.001, 3.0),
        "due-mid": (START - 50, 5.5),
    }
    for name, (tat, vft) in queues.items():
        await waits(world, name, tat, vft)
    order = ["due-low", "due-mid", "due-high", "beyond-low", "beyond-high"]
    assert await world.waiting_names() == order
    for limit in range(6):
        assert await world.waiting_names(limit=limit or 1) == order[: limit or 1]
    world.clock.time += 0.5
    assert await world.waiting_names() == ["beyond-high", "due-low", "due-mid", "due-high", "beyond-low"]
    shown = await world.store.waiting_queues(POOL, START, 1)
    assert (shown[0].tat, shown[0].vft) == (START, 4.0)
    assert list(await world.store.waiting_queues("another pool", START, 9)) == []


async def test_the_index_follows_the_clocks_of_a_waiting_line(world: World) -> None:
    await world.store.register(worker(slots=3))
    running = await world.admitted(invocation("0", tenant="a", estimate=100.0), Slot("w", 0))
    await world.enqueued(invocation("1", tenant="a"), invocation("1", tenant="b"))
    assert await world.waiting_names() == ["b", "a"]
    await world.settle(running, served=0.0)
    assert [queue.vft for queue in await world.store.waiting_queues(POOL, START, 9)] == [0.0, 0.0]
    head = await world.store.head_of("b")
    assert head is not None
    await world.enqueued(later(invocation("2", tenant="b"), 1))
    await world.dispatched(head, Slot("w", 1))
    assert await world.waiting_names() == ["a", "b"]


async def test_a_pool_never_seen_starts_at_zero(world: World) -> None:
    assert (await world.store.snapshot(POOL, "a")).pool == Pool(POOL)


async def test_virtual_time_never_falls(world: World) -> None:
    for time, expected in ((5.0, 5.0), (4.0, 5.0), (5.0, 5.0), (7.25, 7.25), (0.0, 7.25)):
        await world.store.note_pool(POOL, virtual_time=time)
        assert (await world.store.snapshot(POOL, "a")).pool.virtual_time == expected
    await world.store.note_pool(POOL, virtual_time=8.99999)
    assert (await world.store.snapshot(POOL, "a")).pool.virtual_time == 8.999


async def test_hints_are_set_alone_and_together(world: World) -> None:
    await world.store.note_pool(POOL, backlogged=True)
    await world.store.note_pool(POOL, rate_scale=0.5)
    assert (await world.store.snapshot(POOL, "a")).pool == Pool(POOL, 0.0, True, 0.5)
    await world.store.note_pool(POOL, virtual_time=3.0, backlogged=False)
    await world.store.note_pool(POOL, virtual_time=2.0, backlogged=True, rate_scale=0.25)
    assert (await world.store.snapshot(POOL, "a")).pool == Pool(POOL, 3.0, True, 0.25)
    await world.store.note_pool(POOL)
    assert (await world.store.snapshot("q", "a")).pool == Pool("q")


async def test_overdue_finds_queued_invocations_past_their_deadline(world: World) -> None:
    await world.store.register(worker())
    await world.enqueued(
        invocation("0", tenant="a", deadline_at=START + 50),
        later(invocation("1", tenant="a", deadline_at=START + 10), 1),
        invocation("0", tenant="b", deadline_at=START + 20.5),
        invocation("0", tenant="c", deadline_at=START + 99),
        invocation("0", tenant="d", deadline_at=START + 1, pool="q"),
    )

    async def late(seconds: float, limit: int = 9) -> set[tuple[str, str]]:
        found = await world.store.overdue(POOL, START + seconds, limit)
        return {(one.tenant, one.id) for one in found}

    assert await late(9.9) == set()
    assert await late(10) == {("a", "1")}
    assert await late(30) == {("a", "1"), ("b", "0")}
    assert len(await late(60, limit=2)) == 2
    (first,) = await world.store.overdue(POOL, START + 10, 9)
    await world.drop(first)
    assert await late(30) == {("b", "0")}


async def test_get_many_returns_those_that_exist(world: World) -> None:
    new = [invocation(f"{number}") for number in range(105)]
    await world.enqueued(*new[:3])
    found = await world.store.get_many([(one.tenant, one.id) for one in new] + [("b", "0"), ("a", "0")])
    assert sorted(one.id for one in found if one.tenant == "a")[:3] == ["0", "1", "2"]
    assert {one.id for one in found} == {"0", "1", "2"}
    assert list(await world.store.get_many([])) == []


@pytest.mark.parametrize("name", ["é", "a#b", "a/b", "Q#", "x" * 200])
async def test_any_name_is_a_line(world: World, name: str) -> None:
    await world.enqueued(invocation(name, tenant=name))
    assert await world.waiting_names() == [name]
    head = await world.store.head_of(name)
    assert head is not None
    assert (head.tenant, head.id) == (name, name)
