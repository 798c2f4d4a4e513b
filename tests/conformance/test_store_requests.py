"""What each method costs: the requests that botocore sends, counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.ports import Log, Store
from dispatcher.stores.snapshot_parts import PART_BYTES_MAX
from tests.conformance.store_backends import TablePlace, open_table
from tests.conformance.store_world import SHARD, FakeClock, answer, invocation, kept_response, tenant_row, usage_row

PUT, GET, QUERY, UPDATE, TRANSACTION = "PutItem", "GetItem", "Query", "UpdateItem", "TransactWriteItems"


class Counted:
    """Remembers the operations sent. Its log is without hedging: how many puts that sends depends on the machine."""

    def __init__(self, place: TablePlace, clock: FakeClock, stripes: int = 1) -> None:
        self.store = open_table(place.client, place.table, clock, is_hedged=False, log_stripes=stripes)
        self.log = self.store.log(SHARD)
        self.sent: list[str] = []
        self._events = place.client.meta.events
        self._events.register("before-send.dynamodb", self._note)

    def _note(self, request: Any, **_: Any) -> None:
        self.sent.append(request.headers["X-Amz-Target"].decode().partition(".")[2])

    async def close(self) -> None:
        self._events.unregister("before-send.dynamodb", self._note)
        await self.store.close()


@pytest.fixture
async def counted(table_place: TablePlace, clock: FakeClock) -> AsyncIterator[Counted]:
    made = Counted(table_place, clock)
    await made.store.create(invocation())
    await made.log.append(0, b"entry")
    made.sent.clear()
    yield made
    await made.close()


OfLog = Callable[[Log], Awaitable[object]]
OfStore = Callable[[Store], Awaitable[object]]


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        pytest.param(lambda log: log.append(1, b"x"), [PUT], id="append"),
        pytest.param(lambda log: log.append(0, b"x"), [PUT], id="append, lost"),
        pytest.param(lambda log: log.read(0), [QUERY], id="read"),
        pytest.param(lambda log: log.last(), [QUERY], id="last"),
        pytest.param(lambda log: log.load_snapshot(), [QUERY, QUERY], id="no snapshot"),
        pytest.param(
            lambda log: log.save_snapshot(1, "n", b"x" * (PART_BYTES_MAX + 1)), [QUERY, *[PUT] * 3], id="snapshot"
        ),
        pytest.param(lambda log: log.cut(1), [], id="cut"),
    ],
)
async def test_requests_of_the_log(counted: Counted, call: OfLog, operations: list[str]) -> None:
    await call(counted.log)
    assert counted.sent == operations


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        pytest.param(lambda s: s.create(invocation("p-1", key="new")), [PUT, PUT], id="create"),
        pytest.param(lambda s: s.create(invocation("p-1", key="")), [PUT], id="create, no key"),
        pytest.param(lambda s: s.create(invocation("p-1")), [PUT, GET], id="create, key in use"),
        pytest.param(lambda s: s.get("p-0"), [GET], id="get"),
        pytest.param(lambda s: s.find("a", "k"), [GET, GET], id="find"),
        pytest.param(lambda s: s.find("a", "unknown"), [GET], id="find, unknown"),
        pytest.param(lambda s: s.answer("p-0", answer()), [UPDATE], id="answer"),
        pytest.param(lambda s: s.share("p-0"), [UPDATE], id="share"),
        pytest.param(lambda s: s.refuse("p-0", answer()), [UPDATE], id="refuse"),
        pytest.param(lambda s: s.keep_response(kept_response(), 99), [QUERY, UPDATE, PUT], id="keep response"),
        pytest.param(lambda s: s.keep_response(kept_response(), 0), [QUERY], id="keep response, over the limit"),
        pytest.param(lambda s: s.response("a", "resp_p-0"), [QUERY], id="response"),
        pytest.param(lambda s: s.mailboxes.put("p", 1, [b"x", b"y"]), [PUT], id="put mailbox"),
        pytest.param(lambda s: s.mailboxes.read("p", 0), [QUERY], id="read mailbox"),
        pytest.param(lambda s: s.put_usage(SHARD, [usage_row(), usage_row("b")]), [PUT, PUT], id="put usage"),
        pytest.param(lambda s: s.usage("a", 0, 23), [QUERY], id="usage, a day"),
        pytest.param(lambda s: s.usage(None, 23, 24), [QUERY, QUERY], id="usage, two days"),
        pytest.param(lambda s: s.put_tenant_rows(SHARD, [tenant_row()]), [PUT], id="put tenant rows"),
        pytest.param(lambda s: s.tenant_rows(SHARD), [QUERY], id="tenant rows"),
        pytest.param(lambda s: s.get_tenant("a"), [GET], id="get tenant"),
        pytest.param(lambda s: s.find_key("k"), [GET], id="find key"),
        pytest.param(lambda s: s.list_tenants(), [QUERY], id="list tenants"),
        pytest.param(lambda s: s.keys_of("a"), [QUERY], id="keys of"),
        pytest.param(lambda s: s.put_key(KeyRecord("k", "d", "a")), [TRANSACTION], id="put key"),
        pytest.param(
            lambda s: s.put_tenant(Tenant("a"), expected_version=None), [GET, GET, GET, TRANSACTION], id="new tenant"
        ),
        pytest.param(lambda s: s.put_tenant(Tenant("a"), expected_version=1), [TRANSACTION], id="changed tenant"),
    ],
)
async def test_requests_of_the_store(counted: Counted, call: OfStore, operations: list[str]) -> None:
    await call(counted.store)
    assert counted.sent == operations


async def test_a_snapshot_of_one_part_is_loaded_by_three_requests(counted: Counted) -> None:
    """The first one asks whether the log is striped."""
    await counted.log.save_snapshot(1, "n", b"state")
    counted.sent.clear()
    await counted.log.load_snapshot()
    assert counted.sent == [QUERY, QUERY, QUERY]


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        pytest.param(lambda log: log.append(3, b"x"), [PUT], id="append"),
        pytest.param(lambda log: log.append(2, b"x"), [PUT], id="append, lost"),
        pytest.param(lambda log: log.read(3), [QUERY], id="read, nothing new"),
        pytest.param(lambda log: log.read(0), [QUERY] * 4, id="read"),
        pytest.param(lambda log: log.last(), [QUERY], id="last, nothing new"),
        pytest.param(lambda log: log.load_snapshot(), [QUERY, QUERY], id="no snapshot"),
        pytest.param(lambda log: log.save_snapshot(1, "n", b"x"), [PUT, PUT], id="snapshot"),
    ],
)
async def test_requests_of_a_log_in_four_stripes(
    table_place: TablePlace, clock: FakeClock, call: OfLog, operations: list[str]
) -> None:
    counted = Counted(table_place, clock, stripes=4)
    for position in range(3):
        await counted.log.append(position, b"entry")
    counted.sent.clear()
    await call(counted.log)
    assert counted.sent == operations
    await counted.close()
