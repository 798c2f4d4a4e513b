"""admit and enqueue: every outcome, and what each leaves behind."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from dispatcher.model.errors import RequestTooLarge
from dispatcher.model.old_invocation import Slot, State, dispatched
from dispatcher.model.old_outcomes import Written
from dispatcher.old_stores.limits import RETENTION_S, TEXT_BYTES_MAX
from dispatcher.policies.clocks import STAY, Charge, Clocks, Debit, Step, debit
from tests.conformance.store_world import POOL, START, World, invocation, later, worker

SLOT = Slot("w", 0)


async def test_an_admitted_invocation_is_running_charged_and_leased(world: World) -> None:
    await world.store.register(worker())
    running = await world.admitted(invocation("i", body="question"), SLOT)
    assert await world.store.get("a", "i") == running
    queue = await world.queue()
    assert queue.clocks == Clocks(tat=START - 100 + 1, vft=5.0)
    assert (queue.waiting, queue.reserved, queue.spent) == (0, 10.0, 0.0)
    assert await world.leases() == {("w", 0): "a/i#1"}
    lease = (await world.store.workers(POOL))[0].leases[0]
    assert (lease.tenant, lease.invocation, lease.attempt, lease.leased_at) == ("a", "i", 1, START)


async def test_the_same_id_exists_whatever_else_holds(world: World) -> None:
    await world.store.register(worker())
    await world.admitted(invocation("i"), SLOT)
    assert (await world.admit(invocation("i"), SLOT))[0] is Written.EXISTS
    assert (await world.admit(invocation("i"), Slot("w", 1)))[0] is Written.EXISTS
    assert await world.enqueue(invocation("i")) is Written.EXISTS
    assert await world.enqueue(invocation("i"), waiting_max=0) is Written.EXISTS
    assert (await world.queue()).reserved == 10.0
    assert (await world.admit(invocation("i", tenant="b"), Slot("w", 1)))[0] is Written.DONE


@pytest.mark.parametrize("slot", [Slot("w", 0), Slot("w", 2), Slot("w", -1), Slot("other", 0)])
async def test_a_slot_that_is_taken_or_not_there_conflicts(world: World, slot: Slot) -> None:
    await world.store.register(worker())
    await world.admitted(invocation("first"), SLOT)
    before = await world.queue()
    assert (await world.admit(invocation("i"), slot))[0] is Written.CONFLICT
    assert await world.store.get("a", "i") is None
    assert await world.queue() == before
    assert await world.leases() == {("w", 0): "a/first#1"}


@pytest.mark.parametrize("change", [{"draining": True}, {"alive_until": START}, {"slots": 0}])
async def test_a_worker_that_takes_no_work_conflicts(world: World, change: dict[str, Any]) -> None:
    seated = await world.store.register(worker())
    assert seated is not None
    await world.store.heartbeat(replace(seated, **change))
    assert (await world.admit(invocation("i"), SLOT))[0] is Written.CONFLICT
    assert (await world.queue()).reserved == 0.0


async def test_an_arrival_does_not_overtake_its_own_line(world: World) -> None:
    await world.store.register(worker())
    await world.enqueued(invocation("first"))
    assert (await world.admit(invocation("i"), SLOT))[0] is Written.CONFLICT
    assert await world.leases() == {}
    assert (await world.admit(invocation("j", tenant="b"), SLOT))[0] is Written.DONE


@pytest.mark.parametrize("which", ["tat", "vft"])
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-inf, inf, Written.DONE),
        (7.3, 7.3, Written.DONE),
        (-inf, 7.3, Written.DONE),
        (7.3, inf, Written.DONE),
        (7.301, inf, Written.CONFLICT),
        (-inf, 7.299, Written.CONFLICT),
    ],
)
async def test_a_step_holds_from_edge_to_edge(
    world: World, which: str, low: float, high: float, expected: Written
) -> None:
    await world.store.register(worker(slots=3))
    charge = Charge(1.0, True, 1.0, 1.0)
    first = Debit(charge, Step(7.0, 0.3), Step(7.1, 0.2), 0.0)
    assert await world.store.admit(dispatched(invocation("0"), SLOT, charge, START), first, START) is Written.DONE
    steps = {"tat": STAY, "vft": STAY, which: Step(None, 0.7, low, high)}
    then = Debit(charge, steps["tat"], steps["vft"], 0.0)
    running = dispatched(invocation("1"), Slot("w", 1), charge, START)
    assert await world.store.admit(running, then, START) is expected
    moved = 8.0 if expected is Written.DONE else 7.3
    assert getattr((await world.queue()).clocks, which) == moved


async def test_a_line_never_seen_reads_zero_in_conditions(world: World) -> None:
    await world.store.register(worker())
    charge = Charge(1.0, False, 0.0, 1.0)
    above = Debit(charge, STAY, Step(None, 1.0, low=0.001), 0.0)
    running = dispatched(invocation("i"), SLOT, charge, START)
    assert await world.store.admit(running, above, START) is Written.CONFLICT
    upto = Debit(charge, Step(None, 0.0, low=0.0), Step(5.0, 1.0, high=0.0), 0.0)
    assert await world.store.admit(running, upto, START) is Written.DONE
    assert (await world.queue()).clocks == Clocks(0.0, 6.0)


async def test_charges_computed_from_one_look_add_up(world: World) -> None:
    """Inside one branch nothing is read, modified and written back: both of two charges count."""
    await world.store.register(worker(slots=3))
    await world.admitted(invocation("first"), SLOT)
    clocks = (await world.queue()).clocks
    taken = debit(clocks, world.share, 10.0, START, 0.0)
    for number in (1, 2):
        running = dispatched(invocation(f"{number}"), Slot("w", number), taken.charge, START)
        assert await world.store.admit(running, taken, START) is Written.DONE
    queue = await world.queue()
    assert (queue.clocks.tat, queue.clocks.vft, queue.reserved) == (clocks.tat + 2, clocks.vft + 10, 30.0)


async def test_a_queued_invocation_waits_in_its_line(world: World) -> None:
    await world.store.note_pool(POOL, virtual_time=40.0)
    queued = invocation("i", body="question", detached=True)
    assert await world.enqueue(queued) is Written.DONE
    assert await world.store.get("a", "i") == queued
    assert await world.store.head_of("a") == queued
    queue = await world.queue()
    assert (queue.waiting, queue.reserved, queue.clocks.vft) == (1, 0.0, 40.0)
    assert await world.waiting_names() == ["a"]


async def test_the_lift_is_for_the_first_and_only_the_first(world: World) -> None:
    lift = Step(5.0, 0.0, high=5.0)
    assert await world.store.enqueue(invocation("0"), None, 9) is Written.CONFLICT
    assert await world.store.enqueue(invocation("0"), lift, 9) is Written.DONE
    assert await world.store.enqueue(invocation("1"), lift, 9) is Written.CONFLICT
    assert await world.store.enqueue(invocation("1"), None, 9) is Written.DONE
    assert (await world.queue()).waiting == 2
    assert (await world.queue()).clocks.vft == 5.0


async def test_a_line_that_emptied_meanwhile_wants_the_lift_again(world: World) -> None:
    await world.enqueued(invocation("0"))
    await world.drop(invocation("0"))
    assert await world.store.enqueue(invocation("1"), None, 9) is Written.CONFLICT
    assert (await world.queue()).waiting == 0
    assert await world.enqueue(invocation("1")) is Written.DONE


async def test_a_lift_out_of_its_branch_conflicts(world: World) -> None:
    await world.store.register(worker())
    await world.admitted(invocation("0"), SLOT)
    assert await world.store.enqueue(invocation("1"), Step(1.0, 0.0, high=1.0), 9) is Written.CONFLICT
    assert await world.store.get("a", "1") is None


async def test_a_line_is_bounded(world: World) -> None:
    assert await world.enqueue(invocation("0"), waiting_max=0) is Written.FULL
    for number in range(3):
        assert await world.enqueue(invocation(f"{number}"), waiting_max=3) is Written.DONE
    assert await world.enqueue(invocation("3"), waiting_max=3) is Written.FULL
    assert await world.store.get("a", "3") is None
    assert (await world.queue()).waiting == 3
    assert await world.enqueue(invocation("0", tenant="b"), waiting_max=3) is Written.DONE


async def test_a_line_is_first_come_first_served(world: World) -> None:
    await world.store.register(worker())
    for number, seconds in ((1, 10.0), (2, 9.999), (3, 1e5), (4, 9.5)):
        await world.enqueued(later(invocation(f"{number}"), seconds))
    order = []
    while (head := await world.store.head_of("a")) is not None:
        order.append(head.id)
        await world.drop(head)
    assert order == ["4", "2", "1", "3"]


async def test_a_shared_line_holds_several_tenants(world: World) -> None:
    await world.enqueued(invocation("i", "a", queue="all"), later(invocation("i", "b", queue="all"), -1))
    head = await world.store.head_of("all")
    assert head is not None
    assert head.tenant == "b"
    assert await world.waiting_names() == ["all"]


async def test_an_id_is_free_again_after_its_retention(world: World) -> None:
    await world.store.register(worker(alive_until=START * 2))
    running = await world.admitted(invocation("i"), SLOT)
    await world.settle(running)
    world.clock.time += RETENTION_S - 1
    assert await world.store.get("a", "i") is not None
    assert (await world.admit(invocation("i"), SLOT))[0] is Written.EXISTS
    world.clock.time += 1
    assert await world.store.get("a", "i") is None
    assert list(await world.store.get_many([("a", "i")])) == []
    assert (await world.admit(invocation("i", estimate=3.0), SLOT))[0] is Written.DONE
    again = await world.store.get("a", "i")
    assert again is not None
    assert (again.state, again.result, again.estimate) == (State.RUNNING, None, 3.0)


async def test_a_request_too_long_to_keep_is_refused(world: World) -> None:
    await world.store.register(worker())
    await world.enqueued(invocation("0", body="x" * TEXT_BYTES_MAX))
    with pytest.raises(RequestTooLarge):
        await world.enqueue(invocation("1", body="é" * TEXT_BYTES_MAX))
    with pytest.raises(RequestTooLarge):
        await world.admit(invocation("2", tenant="b", body="é" * TEXT_BYTES_MAX), SLOT)
    assert (await world.queue()).waiting == 1
