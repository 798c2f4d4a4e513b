"""What each method costs: the requests that botocore sends, counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.model.tenants import KeyRecord, Tenant
from tests.conformance.store_backends import TablePlace
from tests.conformance.store_world import POOL, START, FakeClock, World, invocation, later, worker

SLOT = Slot("w", 0)


class Counted(World):
    """Remembers the operations sent since the last `take`."""

    def __init__(self, place: TablePlace, clock: FakeClock) -> None:
        super().__init__(place.open(clock), clock)
        self._sent: list[str] = []
        place.client.meta.events.register("before-send.dynamodb", self._note)

    def _note(self, request: Any, **_: Any) -> None:
        self._sent.append(request.headers["X-Amz-Target"].decode().partition(".")[2])

    def take(self) -> list[str]:
        sent, self._sent = self._sent, []
        return sent


@pytest.fixture
async def counted(table_place: TablePlace, clock: FakeClock) -> Counted:
    world = Counted(table_place, clock)
    await world.store.register(worker())
    world.take()
    return world


async def sent_by(world: Counted, call: Awaitable[object]) -> list[str]:
    world.take()
    await call
    return world.take()


TRANSACTION = ["TransactWriteItems"]


async def test_the_fast_path_is_two_requests(counted: Counted) -> None:
    """look, then admit; keys and tenant configuration are cached by the directory."""
    written, _ = await counted.admit(invocation("i"), SLOT)
    assert written is Written.DONE
    assert counted.take() == ["BatchGetItem", "TransactWriteItems"]


async def test_queueing_is_two_requests_and_three_where_the_slot_was_lost(counted: Counted) -> None:
    assert await counted.enqueue(invocation("i")) is Written.DONE
    assert counted.take() == ["BatchGetItem", "TransactWriteItems"]
    snapshot = await counted.store.snapshot(POOL, "b")
    assert (await counted.admit(invocation("j", tenant="b"), Slot("w", 9)))[0] is Written.CONFLICT
    counted.take()
    assert snapshot.queue.waiting == 0
    assert await counted.enqueue(invocation("j", tenant="b")) is Written.DONE
    assert counted.take() == ["BatchGetItem", "TransactWriteItems"]


@pytest.mark.parametrize("waiting", [1, 2, 3])
async def test_a_dispatch_after_head_of_is_one_request(counted: Counted, waiting: int) -> None:
    await counted.enqueued(*(later(invocation(f"{number}"), number) for number in range(waiting)))
    counted.take()
    head = await counted.store.head_of("a")
    assert head is not None
    assert counted.take() == ["Query", "GetItem"]
    assert (await counted.dispatch(head, SLOT))[0] is Written.DONE
    assert counted.take() == ["BatchGetItem", "TransactWriteItems"]


async def test_a_dispatch_with_an_old_count_is_two_at_most(counted: Counted) -> None:
    await counted.enqueued(invocation("0"), later(invocation("1"), 1))
    counted.take()
    assert (await counted.dispatch(invocation("0"), SLOT))[0] is Written.DONE
    assert counted.take() == ["BatchGetItem", *TRANSACTION, *TRANSACTION]


async def test_ends_are_one_request(counted: Counted) -> None:
    running = await counted.admitted(invocation("0", body="q"), SLOT)
    counted.take()
    assert await counted.requeue(running) is Settled.SETTLED
    assert counted.take() == TRANSACTION
    again = await counted.dispatched(invocation("0", attempt=1), SLOT)
    counted.take()
    assert await counted.settle(again) is Settled.SETTLED
    assert counted.take() == TRANSACTION
    assert await counted.settle(again) is Settled.FENCED
    assert counted.take() == TRANSACTION


async def test_a_settlement_of_a_slot_that_moved_on_is_two(counted: Counted) -> None:
    running = await counted.admitted(invocation("0"), SLOT)
    (holder,) = await counted.store.workers(POOL)
    await counted.store.free_slot(holder, SLOT, holder.leases[0])
    counted.take()
    assert await counted.settle(running) is Settled.SETTLED
    assert counted.take() == TRANSACTION * 2


async def test_a_fresh_process_asks_once_for_the_workers_seat(table_place: TablePlace, counted: Counted) -> None:
    running = await counted.admitted(invocation("0"), SLOT)
    other = World(table_place.open(counted.clock, seed=1), counted.clock)
    counted.take()
    assert await other.settle(running) is Settled.SETTLED
    assert counted.take() == ["BatchGetItem", *TRANSACTION]


Call = Callable[[World], Awaitable[object]]


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        pytest.param(lambda w: w.store.snapshot(POOL, "a"), ["BatchGetItem"], id="snapshot"),
        pytest.param(lambda w: w.store.workers(POOL), ["BatchGetItem"], id="workers"),
        pytest.param(lambda w: w.store.waiting_queues(POOL, START, 50), ["Query"], id="waiting_queues"),
        pytest.param(lambda w: w.store.head_of("unknown"), ["Query"], id="head_of, unknown"),
        pytest.param(lambda w: w.store.get("a", "0"), ["GetItem"], id="get"),
        pytest.param(lambda w: w.store.get_many([("a", str(n)) for n in range(100)]), ["BatchGetItem"], id="get_many"),
        pytest.param(lambda w: w.store.get_many([]), [], id="get_many, none"),
        pytest.param(lambda w: w.drop(invocation("0")), TRANSACTION, id="drop"),
        pytest.param(lambda w: w.store.detach("a", "0"), ["UpdateItem"], id="detach"),
        pytest.param(lambda w: w.store.overdue(POOL, START + 500, 9), ["Query", "Query", "BatchGetItem"], id="overdue"),
        pytest.param(lambda w: w.store.note_pool(POOL, virtual_time=2.0, backlogged=True), ["UpdateItem"], id="note"),
        pytest.param(lambda w: w.store.heartbeat(worker()), ["UpdateItem"], id="beat"),
        pytest.param(lambda w: w.store.register(worker("x")), ["BatchGetItem", "UpdateItem"], id="register"),
        pytest.param(lambda w: w.store.leave(worker()), ["DeleteItem"], id="leave"),
        pytest.param(lambda w: w.store.get_tenant("a"), ["GetItem"], id="get_tenant"),
        pytest.param(lambda w: w.store.find_key("k"), ["GetItem"], id="find_key"),
        pytest.param(lambda w: w.store.list_tenants(), ["Query"], id="list_tenants"),
        pytest.param(lambda w: w.store.keys_of("a"), ["Query"], id="keys_of"),
        pytest.param(lambda w: w.store.put_key(KeyRecord("k", "d", "a")), TRANSACTION, id="put_key"),
        pytest.param(
            lambda w: w.store.put_tenant(Tenant("a", "a"), expected_version=None), TRANSACTION, id="put_tenant"
        ),
    ],
)
async def test_requests_of_each_method(counted: Counted, call: Call, operations: list[str]) -> None:
    await counted.enqueued(invocation("0", body="q"))
    assert await sent_by(counted, call(counted)) == operations
