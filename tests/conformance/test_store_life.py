"""dispatch, settle, requeue, drop, detach: every outcome, the fences, and the ledger."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dispatcher.model.old_fleet import Lease
from dispatcher.model.old_invocation import Invocation, Result, Slot, State, ended, retried
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_stores.limits import TEXT_BYTES_MAX
from dispatcher.policies.clocks import STAY, Clocks, Debit, Step, settlement
from tests.conformance.store_world import POOL, START, World, invocation, later, worker

SLOT = Slot("w", 0)


@pytest.fixture
async def seated(world: World) -> World:
    await world.store.register(worker())
    return world


async def head(world: World, queue: str = "a") -> Invocation:
    found = await world.store.head_of(queue)
    assert found is not None
    return found


async def test_a_dispatch_moves_everything_together(seated: World) -> None:
    await seated.enqueued(invocation("0", body="q"), later(invocation("1"), 1))
    running = await seated.dispatched(await head(seated), SLOT)
    assert await seated.store.get("a", "0") == running
    assert (await head(seated)).id == "1"
    queue = await seated.queue()
    assert (queue.waiting, queue.reserved, queue.clocks) == (1, 10.0, Clocks(START - 99, 5.0))
    assert await seated.leases() == {("w", 0): "a/0#1"}
    assert await seated.waiting_names() == ["a"]
    await seated.dispatched(await head(seated), Slot("w", 1))
    assert (await seated.queue()).waiting == 0
    assert await seated.store.head_of("a") is None
    assert await seated.waiting_names() == []


async def test_nothing_is_dispatched_twice(seated: World) -> None:
    await seated.enqueued(invocation("0"), later(invocation("1"), 1))
    first = await head(seated)
    await seated.dispatched(first, SLOT)
    assert (await seated.dispatch(first, Slot("w", 1)))[0] is Written.CONFLICT
    assert (await seated.dispatch(invocation("never seen"), Slot("w", 1)))[0] is Written.CONFLICT
    queue = await seated.queue()
    assert (queue.waiting, queue.reserved) == (1, 10.0)


async def test_a_taken_slot_leaves_the_invocation_waiting(seated: World) -> None:
    await seated.enqueued(invocation("0"), later(invocation("1"), 1))
    await seated.dispatched(await head(seated), SLOT)
    assert (await seated.dispatch(await head(seated), SLOT))[0] is Written.CONFLICT
    assert (await head(seated)).id == "1"
    assert (await seated.queue()).waiting == 1


async def test_a_clock_out_of_its_branch_leaves_the_invocation_waiting(seated: World) -> None:
    for count in (1, 2):
        await seated.enqueued(later(invocation(f"{count}"), count))
        waiting = await head(seated)
        _, running = await seated.dispatch(waiting, Slot("w", 5))
        assert running.charge is not None
        never = Debit(running.charge, STAY, Step(None, 1.0, low=1e6), 0.0)
        assert await seated.store.dispatch(replace(running, slot=SLOT), never, START) is Written.CONFLICT
        assert await head(seated) == waiting


async def test_a_caller_that_let_go_meanwhile_is_noticed_at_the_dispatch(seated: World) -> None:
    await seated.enqueued(invocation("0", body="q"))
    seen = await head(seated)
    assert await seated.store.detach("a", "0") is Written.DONE
    assert (await seated.dispatch(seen, SLOT))[0] is Written.CONFLICT
    running = await seated.dispatched(await head(seated), SLOT)
    assert running.detached
    assert (await seated.store.get("a", "0")) == running


async def test_detach_wants_a_queued_invocation_with_its_request(seated: World) -> None:
    await seated.enqueued(invocation("0"))
    assert await seated.store.detach("a", "0") is Written.CONFLICT
    assert await seated.store.detach("a", "unknown") is Written.CONFLICT
    running = await seated.admitted(invocation("1", tenant="b", body="q"), SLOT)
    assert await seated.store.detach("b", "1") is Written.CONFLICT
    assert await seated.store.get("b", "1") == running


async def test_settlement_replaces_the_estimate_by_the_truth(seated: World) -> None:
    running = await seated.admitted(invocation("i", body="q"), SLOT)
    before = (await seated.queue()).clocks
    seated.clock.time += 5
    assert await seated.settle(running, served=8.0) is Settled.SETTLED
    queue = await seated.queue()
    assert queue.clocks.tat == pytest.approx(before.tat - 0.2)
    assert queue.clocks.vft == pytest.approx(before.vft - 1.0)
    assert (queue.reserved, queue.spent) == (0.0, 8.0)
    assert await seated.leases() == {}
    stored = await seated.store.get("a", "i")
    assert stored == replace(
        running,
        state=State.DONE,
        ended_at=START + 5,
        result=Result(200, "answer"),
        input_tokens=2,
        output_tokens=3,
        served=8.0,
        body=None,
    )


async def test_a_second_settlement_is_fenced_and_charges_nothing(seated: World) -> None:
    running = await seated.admitted(invocation("i"), SLOT)
    await seated.settle(running)
    before = await seated.queue()
    assert await seated.settle(running, served=99.0) is Settled.FENCED
    assert await seated.requeue(running) is Settled.FENCED
    assert await seated.queue() == before
    kept = await seated.store.get("a", "i")
    assert kept is not None
    assert kept.served == 8.0
    assert await seated.settle(replace(running, id="never seen")) is Settled.FENCED


async def test_an_old_attempt_is_fenced_by_a_later_one(seated: World) -> None:
    first = await seated.admitted(invocation("i", body="q"), SLOT)
    assert await seated.requeue(first) is Settled.SETTLED
    assert await seated.settle(first) is Settled.FENCED
    second = await seated.dispatched(await head(seated), SLOT)
    assert second.attempt == 2
    assert await seated.settle(first) is Settled.FENCED
    assert await seated.requeue(first) is Settled.FENCED
    assert await seated.leases() == {("w", 0): "a/i#2"}
    assert (await seated.queue()).spent == 0.0
    assert await seated.settle(second) is Settled.SETTLED


async def test_requeue_undoes_the_dispatch(seated: World) -> None:
    await seated.enqueued(invocation("0", body="q"), later(invocation("1"), 1))
    before = await seated.queue()
    running = await seated.dispatched(await head(seated), SLOT)
    assert await seated.requeue(running) is Settled.SETTLED
    assert await head(seated) == retried(running)
    after = await seated.queue()
    assert (after.waiting, after.reserved, after.spent) == (2, 0.0, 0.0)
    assert after.clocks.vft == pytest.approx(before.clocks.vft)
    assert await seated.leases() == {}
    assert await seated.waiting_names() == ["a"]


async def test_a_slot_given_to_another_stays_the_others(seated: World) -> None:
    lost = await seated.admitted(invocation("lost"), SLOT)
    (holder,) = await seated.store.workers(POOL)
    assert await seated.store.free_slot(holder, SLOT, holder.leases[0]) is Written.DONE
    await seated.admitted(invocation("other", tenant="b"), SLOT)
    assert await seated.settle(lost) is Settled.SETTLED
    assert await seated.leases() == {("w", 0): "b/other#1"}
    queue = await seated.queue()
    assert (queue.reserved, queue.spent) == (0.0, 8.0)


async def test_an_invocation_outlives_its_worker(seated: World) -> None:
    running = await seated.admitted(invocation("i", body="q"), SLOT)
    (holder,) = await seated.store.workers(POOL)
    await seated.store.free_slot(holder, SLOT, holder.leases[0])
    await seated.store.leave(holder)
    assert list(await seated.store.workers(POOL)) == []
    assert await seated.requeue(running) is Settled.SETTLED
    assert (await seated.queue()).waiting == 1


async def test_free_slot_takes_only_the_lease_it_names(seated: World) -> None:
    await seated.admitted(invocation("i"), SLOT)
    (holder,) = await seated.store.workers(POOL)
    assert await seated.store.free_slot(holder, SLOT, Lease("a", "i", 2, START)) is Written.CONFLICT
    assert await seated.store.free_slot(holder, Slot("w", 1), holder.leases[0]) is Written.CONFLICT
    assert await seated.leases() == {("w", 0): "a/i#1"}


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_drop_ends_a_waiting_invocation_once(seated: World, others: int) -> None:
    await seated.enqueued(*(later(invocation(f"{number}", body="q"), number) for number in range(others + 1)))
    first = await head(seated)
    assert await seated.drop(first) is Settled.SETTLED
    assert await seated.drop(first) is Settled.FENCED
    stored = await seated.store.get("a", "0")
    assert stored is not None
    assert (stored.state, stored.result, stored.body) == (State.EXPIRED, Result(504, "late"), None)
    queue = await seated.queue()
    assert (queue.waiting, queue.reserved) == (others, 0.0)
    assert bool(await seated.waiting_names()) is bool(others)


async def test_drop_is_fenced_by_a_dispatch_and_by_a_later_attempt(seated: World) -> None:
    await seated.enqueued(invocation("i", body="q"))
    seen = await head(seated)
    running = await seated.dispatched(seen, SLOT)
    assert await seated.drop(seen) is Settled.FENCED
    await seated.requeue(running)
    assert await seated.drop(seen) is Settled.FENCED
    assert (await seated.queue()).waiting == 1


async def test_an_answer_too_long_is_an_error_and_the_charge_stands(seated: World) -> None:
    running = await seated.admitted(invocation("i"), SLOT)
    assert await seated.settle(running, answer="é" * TEXT_BYTES_MAX) is Settled.SETTLED
    stored = await seated.store.get("a", "i")
    assert stored is not None
    assert stored.result is not None
    assert (stored.state, stored.result.status, stored.served) == (State.FAILED, 500, 8.0)
    assert json.loads(stored.result.body)["error"]["code"] == "result_too_large"
    assert (await seated.queue()).spent == 8.0


async def test_the_ledger_is_exact_to_the_last_digit(world: World) -> None:
    """0.1 + 0.2 - 0.1 - 0.2 is not 0 in floats: reserved would end below or above it."""
    await world.store.register(worker(slots=7))
    costs = [0.1, 0.2, 0.7, 1e9 / 8, 3.000001, 12345.678901, 1e-6]
    running = [
        await world.admitted(invocation(f"{number}", estimate=cost), Slot("w", number))
        for number, cost in enumerate(costs)
    ]
    for one, served in zip(running, costs[::-1], strict=True):
        await world.settle(one, served=served)
    queue = await world.queue()
    assert queue.reserved == 0.0
    assert queue.spent == 125012349.678903


async def test_changed_terms_do_not_distort_what_is_in_flight(seated: World) -> None:
    running = await seated.admitted(invocation("i"), SLOT)
    assert running.charge is not None
    stored = await seated.store.get("a", "i")
    assert stored is not None
    assert stored.charge == running.charge
    over = ended(running, State.FAILED, START, served=0.0)
    assert await seated.store.settle(over, *settlement(running.charge, 0.0)) is Settled.SETTLED
    assert (await seated.queue()).clocks == Clocks(START - 100, 0.0)
