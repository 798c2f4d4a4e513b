"""Tenants and keys."""

from __future__ import annotations

import asyncio

from dispatcher.model.tenants import AuditRecord, KeyRecord, Tenant
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Store
from tests.conformance.store_world import START, FakeClock

FULL = Tenant(
    "a",
    Share(0.1, 1e9 / 3, 12345.678901234567),
    Tier.PREMIUM,
    ("m", "n"),
    7,
    8,
    version=3,
    slo_class="night",
    prefix_group="g",
)


async def test_a_tenant_is_read_as_it_was_written(store: Store) -> None:
    for tenant in (FULL, Tenant("b"), Tenant("c", models=())):
        assert await store.put_tenant(tenant, expected_version=None)
        assert await store.get_tenant(tenant.name) == tenant
    assert await store.get_tenant("unknown") is None


async def test_a_change_based_on_an_old_version_is_refused(store: Store) -> None:
    await store.put_tenant(Tenant("a", version=1), expected_version=None)
    second = Tenant("a", queue_items_max=5, version=2)
    assert await store.put_tenant(second, expected_version=1)
    assert not await store.put_tenant(Tenant("a", version=2), expected_version=1)
    assert not await store.put_tenant(Tenant("b"), expected_version=1)
    assert await store.get_tenant("a") == second
    assert await store.get_tenant("b") is None


async def test_one_of_many_changes_wins(stores: list[Store]) -> None:
    await stores[0].put_tenant(Tenant("a"), expected_version=None)
    calls = [
        stores[number % 3].put_tenant(Tenant("a", queue_items_max=number, version=2), expected_version=1)
        for number in range(9)
    ]
    outcomes = await asyncio.gather(*calls)
    assert sum(outcomes) == 1
    assert await stores[0].get_tenant("a") == Tenant("a", queue_items_max=outcomes.index(True), version=2)


async def test_tenants_are_listed_by_name_as_they_stand(store: Store) -> None:
    assert list(await store.list_tenants()) == []
    for name in ("b", "c", "a"):
        await store.put_tenant(Tenant(name), expected_version=None)
    await store.put_tenant(Tenant("b", version=2), expected_version=1)
    await store.delete_tenant("c")
    assert [(tenant.name, tenant.version) for tenant in await store.list_tenants()] == [("a", 1), ("b", 2)]


async def test_a_key_is_found_by_its_prefix_until_it_is_deleted(store: Store) -> None:
    first, second = KeyRecord("p1", "d1", "a", created_at=START + 0.1), KeyRecord("p2", "d2", "a", START + 60)
    for key in (second, first, KeyRecord("p3", "d3", "b")):
        await store.put_key(key)
    assert await store.find_key("p1") == first
    assert await store.find_key("p") is None
    assert list(await store.keys_of("a")) == [first, second]
    for _ in range(2):
        await store.delete_key("p1")
    assert await store.find_key("p1") is None
    assert list(await store.keys_of("a")) == [second]


async def test_an_expired_key_is_none_at_its_second(store: Store, clock: FakeClock) -> None:
    await store.put_key(KeyRecord("p", "d", "a", START + 60))
    clock.time = START + 59.9
    assert await store.find_key("p") is not None
    clock.time = START + 60
    assert await store.find_key("p") is None
    assert list(await store.keys_of("a")) == []


async def test_deleting_a_tenant_deletes_its_keys_and_no_others(store: Store) -> None:
    for name in ("a", "ab"):
        await store.put_tenant(Tenant(name), expected_version=None)
        for number in range(60):
            await store.put_key(KeyRecord(f"{name}-{number}", "d", name))
    for _ in range(2):
        await store.delete_tenant("a")
    assert await store.get_tenant("a") is None
    assert await store.find_key("a-0") is None
    assert list(await store.keys_of("a")) == []
    assert len(await store.keys_of("ab")) == 60


def record(number: int, at: float = START, action: str = "tenant.change") -> AuditRecord:
    fields = {"weight": 1.5, "models": ["m"], "tier": "premium"}
    return AuditRecord(f"id-{number}", at, "arn:aws:iam::1:user/ada", action, "a", None, fields)


async def test_a_change_and_its_record_are_written_together(store: Store) -> None:
    month = record(0).month
    assert await store.put_tenant(Tenant("a"), expected_version=None, audit=record(1))
    assert not await store.put_tenant(Tenant("a"), expected_version=None, audit=record(2))
    assert not await store.put_tenant(Tenant("a", version=9), expected_version=8, audit=record(3))
    await store.put_key(KeyRecord("hg-1", "d", "a"), audit=record(4))
    await store.delete_key("hg-none", audit=record(5))
    await store.delete_key("hg-1", audit=record(6))
    await store.delete_tenant("a", audit=record(7))
    assert list(await store.audit_records(month)) == [record(1), record(4), record(6), record(7)]


async def test_records_are_listed_by_month_in_the_order_of_their_times(store: Store) -> None:
    days = [record(number, START + offset * 86_400.0) for number, offset in enumerate((40, 3, 0, 2))]
    for number, each in enumerate(days):
        assert await store.put_tenant(Tenant(f"t{number}"), expected_version=None, audit=each)
    assert len({each.month for each in days}) > 1
    for month in {each.month for each in days}:
        expected = sorted((each for each in days if each.month == month), key=lambda each: each.at)
        assert list(await store.audit_records(month)) == expected
    assert list(await store.audit_records("1999-01")) == []


async def test_a_tenant_with_more_keys_than_a_transaction_holds_is_deleted_with_its_record(store: Store) -> None:
    await store.put_tenant(Tenant("a"), expected_version=None)
    for number in range(100):
        await store.put_key(KeyRecord(f"hg-{number}", "d", "a"))
    await store.delete_tenant("a", audit=record(1))
    assert list(await store.keys_of("a")) == []
    assert list(await store.audit_records(record(1).month)) == [record(1)]
