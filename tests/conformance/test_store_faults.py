"""Requests to DynamoDB that fail, and replies that are lost: nothing is applied twice, nothing untrue is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.tenants import Tenant
from dispatcher.ports import Log
from dispatcher.processes.bootstrap import RealClock
from dispatcher.stores.dynamodb.log import DAY_S, DynamoLog
from dispatcher.stores.dynamodb.requests import THROTTLED_S, TRIES_MAX, Reads, Requests
from dispatcher.stores.dynamodb.server_time import ServerTime
from dispatcher.stores.dynamodb.store import DynamoStore, client_config
from tests.conformance.store_backends import TablePlace
from tests.conformance.store_world import SHARD, START, FakeClock, answer, invocation, tenant_row, usage_row
from tests.support.server_time import IgnoredServerTime


def refused(code: str, operation: str, status: int = 400, reasons: list[dict[str, str]] | None = None) -> ClientError:
    reply: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    if reasons is not None:
        reply["CancellationReasons"] = reasons
    return ClientError(reply, operation)


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


def works(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    return getattr(client, operation)(**arguments)


Fault = Callable[[Any, str, dict[str, Any]], Any]


class FaultyClient:
    """Fails the next requests as `faults` says, then works."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.faults: list[Fault] = []
        self.requests = 0

    def __getattr__(self, operation: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.requests += 1
            fault = self.faults.pop(0) if self.faults else works
            return fault(self.client, operation, arguments)

        return call


class Faulty:
    """A store over a faulty client, and its log without hedging."""

    def __init__(self, place: TablePlace, clock: FakeClock) -> None:
        self.client = FaultyClient(place.client)
        client: Any = self.client
        more: Any = {"clock": clock, "random": Random(place.table), "threads": 2, "server_time": IgnoredServerTime()}
        self.store = DynamoStore(client, place.table, **more)
        self.requests = Requests(client, place.table, *more.values())
        self.log: Log = DynamoLog(self.requests, Reads(self.requests), SHARD)

    async def under(self, faults: list[Fault], call: Awaitable[Any]) -> Any:
        """Await the call. Its requests meet the faults. A write that is refused by its condition ends early."""
        self.client.faults = list(faults)
        try:
            return await call
        finally:
            self.client.faults = []


@pytest.fixture
async def faulty(table_place: TablePlace, clock: FakeClock) -> AsyncIterator[Faulty]:
    made = Faulty(table_place, clock)
    yield made
    await made.store.close()
    made.requests.close()


SEQUENCES = [
    [before],
    [reply_lost],
    [error_after],
    [throttled, before],
    [reply_lost, throttled, reply_lost],
    [throttled, error_after, before],
]


@pytest.mark.parametrize("faults", SEQUENCES)
async def test_an_append_is_recognised_as_ones_own(faulty: Faulty, faults: list[Fault]) -> None:
    assert await faulty.under(faults, faulty.log.append(0, b"mine")) == b"mine"
    assert faulty.client.requests > 1
    assert list(await faulty.log.read(0)) == [b"mine"]


async def test_anothers_entry_is_not_taken_for_ones_own(faulty: Faulty) -> None:
    await faulty.log.append(0, b"another's")

    def lost(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        """The first request never arrives."""
        raise ReadTimeoutError(endpoint_url="")

    assert await faulty.under([lost], faulty.log.append(0, b"mine")) == b"another's"
    assert list(await faulty.log.read(0)) == [b"another's"]


@pytest.mark.parametrize("faults", SEQUENCES)
async def test_an_invocation_is_created_and_answered_once(faulty: Faulty, faults: list[Fault]) -> None:
    assert await faulty.under(faults, faulty.store.create(invocation())) == invocation()
    assert await faulty.under([works, *faults], faulty.store.create(invocation())) == invocation()
    assert await faulty.under(faults, faulty.store.answer("p-0", answer())) == answer()
    assert await faulty.under(faults, faulty.store.answer("p-0", answer("second"))) == answer()


async def test_a_creator_that_dies_after_the_key_is_helped(faulty: Faulty) -> None:
    def gone(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        raise refused("AccessDeniedException", operation)  # it never repeats this one

    faulty.client.faults = [works, gone]
    with pytest.raises(StoreUnavailable):
        await faulty.store.create(invocation("p-0"))
    assert await faulty.store.find("a", "k") is None
    helped = await faulty.store.create(invocation("q-7", body="other", fingerprint="other"))
    assert helped == invocation("p-0", body="other", fingerprint="other")
    assert await faulty.store.create(invocation("p-0")) == helped
    assert await faulty.store.find("a", "k") == helped


@pytest.mark.parametrize("faults", [*SEQUENCES, [conflict], [conflict, reply_lost, conflict]])
async def test_a_tenant_is_created_once(faulty: Faulty, faults: list[Fault]) -> None:
    assert await faulty.under(faults, faulty.store.put_tenant(Tenant("a"), expected_version=None)) is True
    assert await faulty.under(faults, faulty.store.put_tenant(Tenant("a", version=2), expected_version=None)) is False
    assert await faulty.store.get_tenant("a") == Tenant("a")


@pytest.mark.parametrize("fault", [before, throttled])
async def test_a_table_that_is_gone_fails_closed_after_a_bounded_time(
    faulty: Faulty, clock: FakeClock, fault: Fault
) -> None:
    start = clock.now()
    faulty.client.faults = [fault] * 1000
    with pytest.raises(StoreUnavailable):
        await faulty.log.append(0, b"x")
    assert faulty.client.requests <= TRIES_MAX
    assert 0 < clock.now() - start < 5
    faulty.client.faults = []
    assert await faulty.log.last() is None


async def test_the_table_counts_as_throttled_for_a_while(faulty: Faulty, clock: FakeClock) -> None:
    assert not faulty.requests.is_throttled()
    await faulty.under([throttled], faulty.log.append(0, b"x"))
    assert faulty.requests.is_throttled()
    clock.time += THROTTLED_S
    assert not faulty.requests.is_throttled()


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException", "ResourceNotFoundException"])
async def test_a_request_that_cannot_succeed_is_not_repeated(faulty: Faulty, code: str) -> None:
    def invalid(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        raise refused(code, operation)

    faulty.client.faults = [invalid]
    with pytest.raises(StoreUnavailable, match=code):
        await faulty.store.get("i")
    assert faulty.client.requests == 1


async def test_a_table_that_does_not_exist_is_named_by_its_error(table_place: TablePlace, clock: FakeClock) -> None:
    requests = Requests(table_place.client, "no-such-table", clock, Random(0), 1, IgnoredServerTime())
    with pytest.raises(StoreUnavailable, match="ResourceNotFoundException"):
        await DynamoLog(requests, Reads(requests), SHARD).append(0, b"x")
    requests.close()


async def test_a_closed_store_refuses(table_place: TablePlace, clock: FakeClock) -> None:
    store = table_place.open(clock)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("i")


class OffClock(RealClock):
    def __init__(self, off_s: float) -> None:
        self.off_s = off_s

    def now(self) -> float:
        return super().now() + self.off_s


OFF_S = [(0.0, False), (-1.9, False), (1.9, False), (-3600.0, True), (10.0, True)]


@pytest.mark.parametrize(("off_s", "refuses"), OFF_S)
async def test_a_process_whose_clock_is_off_does_not_append(
    table_place: TablePlace, off_s: float, refuses: bool
) -> None:
    requests = Requests(table_place.client, table_place.table, OffClock(off_s), Random(0), 1, ServerTime())
    log = DynamoLog(requests, Reads(requests), SHARD)
    assert list(await log.read(0)) == []
    if refuses:
        with pytest.raises(StoreUnavailable, match=r"s (ahead of|behind) DynamoDB's"):
            await log.append(0, b"x")
    assert refuses or await log.append(0, b"x") == b"x"
    requests.close()


def test_the_client_leaves_retries_to_the_store() -> None:
    config: Any = client_config(7)
    assert config.retries["total_max_attempts"] == 1
    assert config.max_pool_connections == 7
    assert config.connect_timeout + config.read_timeout < 10


async def test_every_item_but_a_tenants_expires_and_no_sooner_than_after_a_day(
    table_place: TablePlace, clock: FakeClock
) -> None:
    """Mailboxes are the exception: their news is worthless after an hour."""
    store = table_place.open(clock)
    await store.log(SHARD).append(0, b"x")
    await store.log(SHARD).save_snapshot(1, "n", b"state")
    await store.mailboxes.put("p", 0, [b"x"])
    await store.create(invocation())
    await store.put_usage(SHARD, [usage_row()])
    await store.put_tenant_rows(SHARD, [tenant_row()])
    await store.put_tenant(Tenant("a"), expected_version=None)
    items = table_place.client.scan(TableName=table_place.table)["Items"]
    expiries = {item["pk"]["S"].partition("#")[0]: float(item.get("ttl", {"N": "0"})["N"]) - START for item in items}
    assert {kind for kind, after_s in expiries.items() if after_s < 0} == {"TENANT", "TENANTS"}
    assert {kind for kind, after_s in expiries.items() if 0 <= after_s < DAY_S} == {"MAIL"}
    parts = [float(item["ttl"]["N"]) for item in items if item["sk"]["S"].startswith("P#")]
    manifests = [float(item["ttl"]["N"]) for item in items if item["sk"]["S"].startswith("M#")]
    assert expiries["LOG"] + START < manifests[0] < parts[0]
    await store.close()
