"""Requests that fail, and replies that are lost: nothing is applied twice, nothing is reported that is not so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.model.tenants import Tenant
from dispatcher.old_stores.dynamodb.requests import TRIES_MAX
from dispatcher.old_stores.dynamodb.store import DynamoStore, client_config
from tests.conformance.store_backends import TablePlace
from tests.conformance.store_world import POOL, FakeClock, World, invocation, later, worker

SLOT = Slot("w", 0)


def refused(code: str, operation: str, status: int = 400, reasons: list[dict[str, str]] | None = None) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    if reasons is not None:
        answer["CancellationReasons"] = reasons
    return ClientError(answer, operation)


def before(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    raise ConnectTimeoutError(endpoint_url="")


def reply_lost(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    getattr(client, operation)(**arguments)
    raise ReadTimeoutError(endpoint_url="")


def error_after(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    getattr(client, operation)(**arguments)
    raise refused("InternalServerError", operation, 500)


def throttled(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    raise refused("ThrottlingException", operation)


def conflict(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
    raise refused("TransactionCanceledException", operation, reasons=reasons)


Fault = Callable[[Any, str, dict[str, Any]], Any]


class FaultyClient:
    """Fails the next requests as `faults` says, then works."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.faults: list[Fault] = []
        self.requests = 0

    def __getattr__(self, operation: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.requests += 1
            if self.faults:
                return self.faults.pop(0)(self._client, operation, arguments)
            return getattr(self._client, operation)(**arguments)

        return call


class Faulty(World):
    def __init__(self, place: TablePlace, clock: FakeClock) -> None:
        self.table = place.table
        self.client = FaultyClient(place.client)
        client: Any = self.client
        store = DynamoStore(client, place.table, clock=clock, random=Random(place.table), threads=2)
        super().__init__(store, clock)


@pytest.fixture
async def faulty(table_place: TablePlace, clock: FakeClock) -> Faulty:
    world = Faulty(table_place, clock)
    seated = await world.store.register(worker(slots=3, alive_until=2e9))
    assert seated is not None
    return world


AMBIGUOUS = [reply_lost, error_after]
SEQUENCES = [
    [before],
    [reply_lost],
    [error_after],
    [conflict],
    [throttled, before, conflict],
    [reply_lost, conflict, reply_lost],
    [conflict, error_after],
]


@pytest.mark.parametrize("faults", SEQUENCES)
async def test_an_admission_is_applied_once(faulty: Faulty, faults: list[Fault]) -> None:
    snapshot = await faulty.store.snapshot(POOL, "a")
    assert snapshot.queue.waiting == 0
    written, _ = await _faulted(faulty, faults, lambda: faulty.admit(invocation("i"), SLOT), reads=1)
    assert written is Written.DONE
    queue = await faulty.queue()
    assert (queue.reserved, queue.clocks.vft) == (10.0, 5.0)
    assert await faulty.leases() == {("w", 0): "a/i#1"}


@pytest.mark.parametrize("faults", SEQUENCES)
async def test_a_life_under_faults_leaves_an_exact_ledger(faulty: Faulty, faults: list[Fault]) -> None:
    """enqueue, dispatch, requeue, dispatch, settle; and a second, dropped: each under the same faults."""
    assert await _faulted(faulty, faults, lambda: faulty.enqueue(invocation("i", body="q")), reads=1) is Written.DONE
    await faulty.enqueued(later(invocation("j"), 1))
    written, running = await _faulted(faulty, faults, lambda: faulty.dispatch(invocation("i"), SLOT), reads=1)
    assert written is Written.DONE
    assert (await faulty.queue()).waiting == 1
    assert await _faulted(faulty, faults, lambda: faulty.requeue(running)) is Settled.SETTLED
    assert (await faulty.queue()).waiting == 2
    again = await faulty.dispatched(invocation("i", attempt=1), SLOT)
    assert await _faulted(faulty, faults, lambda: faulty.settle(again)) is Settled.SETTLED
    assert await _faulted(faulty, faults, lambda: faulty.drop(invocation("j"))) is Settled.SETTLED
    queue = await faulty.queue()
    assert (queue.waiting, queue.reserved, queue.spent, queue.clocks.vft) == (0, 0.0, 8.0, 4.0)
    assert await faulty.leases() == {}


@pytest.mark.parametrize("fault", AMBIGUOUS)
async def test_a_settlement_by_another_is_not_taken_for_ones_own(faulty: Faulty, fault: Fault) -> None:
    """The own request never arrived; meanwhile another settled it: "looks like mine" is no proof."""
    running = await faulty.admitted(invocation("i"), SLOT)

    def anothers(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        other = {**arguments, "ClientRequestToken": arguments["ClientRequestToken"][::-1]}
        placed = other["TransactItems"][0]["Update"]
        values = placed["ExpressionAttributeValues"]
        nonce = next(name for name, value in values.items() if len(value.get("S", "")) == 32)
        placed["ExpressionAttributeValues"] = {**values, nonce: {"S": "another's"}}
        fault(client, operation, other)

    faulty.client.faults = [anothers]
    assert await faulty.settle(running) is Settled.FENCED
    assert (await faulty.queue()).spent == 8.0


@pytest.mark.parametrize("fault", AMBIGUOUS)
async def test_single_writes_are_recognised_too(faulty: Faulty, fault: Fault) -> None:
    await faulty.enqueued(invocation("i", body="q"))
    assert await _faulted(faulty, [fault], lambda: faulty.store.detach("a", "i")) is Written.DONE
    running = await faulty.dispatched(invocation("i", detached=True), SLOT)
    assert running.detached
    (holder,) = await faulty.store.workers(POOL)
    freed = await _faulted(faulty, [fault], lambda: faulty.store.free_slot(holder, SLOT, holder.leases[0]))
    assert freed is Written.DONE
    created = await _faulted(faulty, [fault], lambda: faulty.store.put_tenant(Tenant("a", "a"), expected_version=None))
    assert created is Written.DONE
    seated = await _faulted(faulty, [fault], lambda: faulty.store.register(worker("x", alive_until=2e9)), reads=1)
    assert seated is not None
    assert sum(one.id == "x" for one in await faulty.store.workers(POOL)) == 1


@pytest.mark.parametrize("fault", [before, throttled, conflict])
async def test_a_table_that_is_gone_fails_closed_after_a_bounded_number_of_tries(faulty: Faulty, fault: Fault) -> None:
    tries = faulty.client.requests
    start = faulty.clock.now()
    faulty.client.faults = [fault] * 1000
    with pytest.raises(StoreUnavailable):
        await faulty.store.snapshot(POOL, "a")
    assert faulty.client.requests - tries == TRIES_MAX
    assert 0 < faulty.clock.now() - start < 5
    faulty.client.faults = []
    assert (await faulty.store.snapshot(POOL, "a")).queue.waiting == 0


async def test_a_request_that_dynamodb_calls_wrong_is_not_repeated(faulty: Faulty) -> None:
    def invalid(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        raise refused("ValidationException", operation)

    tries = faulty.client.requests
    faulty.client.faults = [invalid]
    with pytest.raises(StoreUnavailable):
        await faulty.store.get("a", "i")
    assert faulty.client.requests == tries + 1


async def test_keys_left_unprocessed_are_asked_for_again(faulty: Faulty) -> None:
    def half(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        ((table, request),) = arguments["RequestItems"].items()
        keys = request["Keys"]
        answer = client.batch_get_item(RequestItems={table: {**request, "Keys": keys[::2]}})
        return {**answer, "UnprocessedKeys": {table: {**request, "Keys": keys[1::2]}}}

    await faulty.admitted(invocation("i"), SLOT)
    expected = await faulty.store.snapshot(POOL, "a")
    faulty.client.faults = [half, half]
    assert await faulty.store.snapshot(POOL, "a") == expected
    assert len(expected.workers) == 1
    assert expected.queue.reserved == 10.0


def test_the_client_leaves_retries_to_the_store() -> None:
    config: Any = client_config(7)
    assert config.retries["total_max_attempts"] == 1
    assert config.max_pool_connections == 7
    assert config.connect_timeout + config.read_timeout < 10


async def _faulted(faulty: Faulty, faults: list[Fault], call: Callable[[], Any], reads: int = 0) -> Any:
    """The faults meet the first write, after `reads` requests that go well."""
    faulty.client.faults = [_well] * reads + list(faults)
    outcome = await call()
    assert faulty.client.faults == [], "every fault was met"
    return outcome


def _well(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    return getattr(client, operation)(**arguments)


async def test_a_worker_that_beats_again_keeps_the_seat_it_was_about_to_lose(faulty: Faulty) -> None:
    """Timeline: the newcomer reads the directory, the silent worker beats, the newcomer writes."""
    (silent,) = await faulty.store.workers(POOL)
    faulty.clock.time = silent.alive_until + 1
    heartbeats = _interposed(faulty, lambda world: world.store.heartbeat(replace(silent, alive_until=3e9)))
    faulty.client.faults = [_well, heartbeats]
    seated = await faulty.store.register(worker("new", alive_until=3e9))
    assert [one.id for one in await faulty.store.workers(POOL)] == ["w", "new"]
    assert seated is not None
    assert seated.seat != 0


async def test_a_worker_that_comes_back_does_not_remove_its_successor(faulty: Faulty) -> None:
    """Timeline: it reads its own seat in the directory, another takes the seat, it writes."""
    (silent,) = await faulty.store.workers(POOL)
    faulty.clock.time = silent.alive_until + 1
    taken = _interposed(faulty, lambda world: world.store.register(worker("new", alive_until=3e9)))
    faulty.client.faults = [_well, taken]
    seated = await faulty.store.register(replace(silent, alive_until=3e9))
    assert [one.id for one in await faulty.store.workers(POOL)] == ["new", "w"]
    assert seated is not None
    assert seated.seat != 0


def _interposed(faulty: Faulty, deed: Callable[[World], Any]) -> Fault:
    """Another's whole deed, between this request's making and its arrival."""

    def fault(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        random = Random("another")
        other = DynamoStore(client, faulty.table, clock=faulty.clock, random=random, threads=1)
        asyncio.run(deed(World(other, faulty.clock)))
        return getattr(client, operation)(**arguments)

    return fault
