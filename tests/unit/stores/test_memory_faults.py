"""The memory store's faults: a request fails before it is applied or after, and each view has its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import pytest

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.ports import Store
from tests.conformance.store_world import (
    SHARD,
    FakeClock,
    answer,
    batch,
    file,
    invocation,
    kept_response,
    tenant_row,
    usage_row,
)
from tests.support.world.memory_store import READS, WRITES, MemoryStore

CALLS: list[Callable[[Store], Awaitable[object]]] = [
    lambda s: s.log(SHARD).append(0, b"x"),
    lambda s: s.log(SHARD).read(0),
    lambda s: s.log(SHARD).last(),
    lambda s: s.log(SHARD).save_snapshot(0, "n", b"state"),
    lambda s: s.log(SHARD).load_snapshot(),
    lambda s: s.log(SHARD).cut(0),
    lambda s: s.create(invocation()),
    lambda s: s.get("p-0"),
    lambda s: s.find("a", "k"),
    lambda s: s.share("p-0"),
    lambda s: s.refuse("p-0", answer()),
    lambda s: s.answer("p-0", answer()),
    lambda s: s.keep_response(kept_response(), 1000),
    lambda s: s.response("a", "resp_p-0"),
    lambda s: s.delete_response("a", "resp_p-0"),
    lambda s: s.put_file(file()),
    lambda s: s.file("a", "file-0"),
    lambda s: s.files("a"),
    lambda s: s.delete_file("a", "file-0"),
    lambda s: s.create_batch(batch()),
    lambda s: s.batch("a", "batch_0"),
    lambda s: s.batches("a"),
    lambda s: s.replace_batch(batch(), 1),
    lambda s: s.open_batches("default"),
    lambda s: s.retire_batch(batch()),
    lambda s: s.mailboxes.put("p", 0, [b"x"]),
    lambda s: s.mailboxes.read("p", 0),
    lambda s: s.put_usage("s", [usage_row()]),
    lambda s: s.usage(None, 0, 1000),
    lambda s: s.put_tenant_rows(SHARD, [tenant_row()]),
    lambda s: s.tenant_rows(SHARD),
    lambda s: s.put_tenant(Tenant("a"), expected_version=None),
    lambda s: s.get_tenant("a"),
    lambda s: s.find_tenant("a"),
    lambda s: s.erase("a"),
    lambda s: s.list_tenants(),
    lambda s: s.delete_tenant("a"),
    lambda s: s.put_key(KeyRecord("k", "d", "a")),
    lambda s: s.find_key("k"),
    lambda s: s.keys_of("a"),
    lambda s: s.delete_key("k"),
    lambda s: s.audit_records("2026-11"),
]


class Fails:
    def __init__(self, *, before: str = "", after: str = "") -> None:
        self._before, self._after = before, after
        self.seen: list[str] = []

    async def before(self, operation: str) -> None:
        self.seen.append(operation)
        if operation == self._before:
            raise StoreUnavailable()

    async def after(self, operation: str) -> None:
        if operation == self._after:
            raise StoreUnavailable()


async def test_every_request_passes_the_hook_under_a_name_that_is_listed() -> None:
    faults = Fails()
    store = MemoryStore(FakeClock(), faults)
    for call in CALLS:
        await call(store)
    assert set(faults.seen) <= READS | WRITES
    assert store.requests.total() == len(faults.seen)


def test_the_calls_above_are_all_there_are() -> None:
    ports = [Store, type(MemoryStore(FakeClock()).log(SHARD)), type(MemoryStore(FakeClock()).mailboxes)]
    methods = [name for port in ports for name, what in inspect.getmembers(port) if inspect.iscoroutinefunction(what)]
    assert len(CALLS) == len([name for name in methods if name != "close"])


async def test_an_error_before_writes_nothing_and_one_after_only_loses_the_reply() -> None:
    store = MemoryStore(FakeClock())
    log = store.log(SHARD)
    store.faults = Fails(before="append")
    with pytest.raises(StoreUnavailable):
        await log.append(0, b"x")
    assert await log.last() is None
    store.faults = Fails(after="append")
    with pytest.raises(StoreUnavailable):
        await log.append(0, b"x")
    assert await log.last() == (0, b"x")


async def test_a_writer_that_dies_before_the_manifest_leaves_no_snapshot() -> None:
    store = MemoryStore(FakeClock())
    log = store.log(SHARD)
    await log.save_snapshot(1, "n", b"old")
    store.faults = Fails(before="save_snapshot_manifest")
    with pytest.raises(StoreUnavailable):
        await log.save_snapshot(2, "n", b"new")
    assert await log.load_snapshot() == (1, b"old")


async def test_views_share_data_but_neither_faults_nor_clocks() -> None:
    first = MemoryStore(FakeClock(), Fails(before="append"))
    second = first.view(FakeClock())
    assert await second.log(SHARD).append(0, b"x") == b"x"
    with pytest.raises(StoreUnavailable):
        await first.log(SHARD).append(1, b"y")
    assert await first.log(SHARD).last() == (0, b"x")
    assert second.requests["append"] == 1
    assert first.requests["append"] == 0
