"""A name has at most one tenant, and what is kept for a tenant belongs to its identity."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.ports import Store
from dispatcher.stores.dynamodb.requests import encode_item
from dispatcher.stores.layout import listing_key, tenant_key
from dispatcher.stores.records.tenants import tenant_record, to_tenant
from tests.conformance.store_backends import TablePlace
from tests.conformance.store_world import FakeClock, answer, batch, file, invocation, kept_response

FIRST, SECOND = Tenant("a.1", version=5), Tenant("a.2", version=6)


async def test_a_tenant_is_found_by_its_name_and_by_its_identity(store: Store) -> None:
    for tenant in (FIRST, Tenant("ab.1"), Tenant("a-b.1"), Tenant("old")):
        assert await store.put_tenant(tenant, expected_version=None)
    assert [await store.find_tenant(name) for name in ("a", "a.1")] == [FIRST, FIRST]
    assert await store.find_tenant("old") == Tenant("old")
    assert [await store.find_tenant(name) for name in ("a.", "a.2", "b", "", "old.1", "ol")] == [None] * 6
    assert await store.get_tenant("a") is None


async def test_a_name_has_one_tenant_until_it_is_deleted(store: Store) -> None:
    assert await store.put_tenant(FIRST, expected_version=None)
    for other in (SECOND, Tenant("a"), FIRST):
        assert not await store.put_tenant(other, expected_version=None)
    assert await store.put_tenant(replace(FIRST, version=9), expected_version=5)
    for _ in range(2):
        await store.delete_tenant("a.1")
    assert await store.find_tenant("a") is None
    assert await store.put_tenant(SECOND, expected_version=None)
    await store.delete_tenant("a.1")
    assert (await store.find_tenant("a"), list(await store.list_tenants())) == (SECOND, [SECOND])


async def test_a_tenant_that_is_older_than_identities_has_its_name(store: Store) -> None:
    assert await store.put_tenant(Tenant("a"), expected_version=None)
    assert not await store.put_tenant(FIRST, expected_version=None)
    assert await store.find_tenant("a") == Tenant("a")
    await store.delete_tenant("a")
    assert await store.put_tenant(FIRST, expected_version=None)
    assert await store.find_tenant("a") == FIRST


async def test_one_of_many_tenants_gets_a_name(stores: list[Store]) -> None:
    made = [stores[number % 3].put_tenant(Tenant(f"a.{number}"), expected_version=None) for number in range(9)]
    outcomes = await asyncio.gather(*made)
    assert sum(outcomes) == 1
    assert await stores[0].find_tenant("a") == Tenant(f"a.{outcomes.index(True)}")
    assert len(await stores[0].list_tenants()) == 1


async def test_keys_belong_to_the_identity(store: Store) -> None:
    await store.put_tenant(FIRST, expected_version=None)
    await store.put_key(KeyRecord("p1", "d", "a.1"))
    await store.delete_tenant("a.1")
    await store.put_tenant(SECOND, expected_version=None)
    await store.put_key(KeyRecord("p2", "d", "a.2"))
    assert await store.find_key("p1") is None
    assert [key.prefix for key in await store.keys_of("a.2")] == ["p2"]
    assert list(await store.keys_of("a.1")) == []


async def test_what_is_kept_for_a_deleted_tenant_is_erased_and_nothing_else(store: Store) -> None:
    """Responses and answers cannot be listed in DynamoDB's table. There the test reads the other kinds only."""
    for place, tenant in enumerate(("a.1", "a.2", "a")):
        await store.put_file(file(tenant=tenant))
        await store.create_batch(batch(place, tenant))
        await store.keep_response(kept_response("resp_1", tenant), 1000)
        for number, key in enumerate(("k", "open")):
            await store.create(invocation(f"{tenant}-{number}", tenant=tenant, key=key))
        await store.answer(f"{tenant}-0", answer())
    for _ in range(2):
        await store.erase("a.1")
    kept = {tenant: (await store.files(tenant), await store.batches(tenant)) for tenant in ("a.1", "a.2", "a")}
    assert [(len(files), len(batches)) for files, batches in kept.values()] == [(0, 0), (1, 1), (1, 1)]
    assert sorted(tenant for tenant, _ in await store.open_batches("default")) == ["a", "a.2"]
    assert await store.find("a.1", "open") is not None, "a call without an answer ends by itself"
    for tenant in ("a.2", "a"):
        assert await store.response(tenant, "resp_1") is not None
        assert await store.find(tenant, "k") is not None
    if type(store).__name__ != "DynamoStore":
        assert await store.response("a.1", "resp_1") is None
        assert await store.find("a.1", "k") is None
        assert await store.keep_response(kept_response("resp_2", "a.1", content=b"x" * 1000), 1000), (
            "its bytes are free"
        )
    assert not await store.replace_batch(replace(batch(tenant="a.1"), version=2), 1)


def test_an_older_version_takes_the_identity_for_the_name() -> None:
    """So both versions serve the same identity during a deployment."""
    assert tenant_record(FIRST)["name"] == "a.1"
    assert to_tenant(tenant_record(FIRST)) == FIRST


async def test_a_name_is_free_after_an_older_version_has_deleted_its_tenant(
    table_place: TablePlace, clock: FakeClock
) -> None:
    """It knows no claim of a name, and leaves it."""
    store = table_place.open(clock)
    assert await store.put_tenant(FIRST, expected_version=None)
    for key in (tenant_key("a.1"), listing_key("a.1")):
        table_place.client.delete_item(TableName=table_place.table, Key=encode_item(key))
    assert await store.find_tenant("a") is None
    assert await store.put_tenant(SECOND, expected_version=None)
    assert not await store.put_tenant(FIRST, expected_version=None)
    assert await store.find_tenant("a") == SECOND
    await store.close()
