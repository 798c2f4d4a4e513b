from __future__ import annotations

from dataclasses import replace

from dispatcher.model.old_invocation import Slot
from dispatcher.model.old_outcomes import Written
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from tests.conformance.store_world import START, World, invocation, worker

FULL = Tenant("a", "line", "pool", Share(0.1, 1e9 / 3, 12345.678901234567), Tier.PREMIUM, ("m", "n"), 7, 8, 3)


async def test_a_tenant_is_read_as_it_was_written(world: World) -> None:
    for tenant in (FULL, Tenant("b", "b"), Tenant("c", "c", models=())):
        assert await world.store.put_tenant(tenant, expected_version=None) is Written.DONE
        assert await world.store.get_tenant(tenant.name) == tenant
    assert await world.store.get_tenant("unknown") is None


async def test_a_tenant_is_created_once(world: World) -> None:
    await world.store.put_tenant(FULL, expected_version=None)
    other = replace(FULL, tier=Tier.BACKGROUND)
    assert await world.store.put_tenant(other, expected_version=None) is Written.EXISTS
    assert await world.store.get_tenant("a") == FULL


async def test_a_change_based_on_an_old_version_conflicts(world: World) -> None:
    await world.store.put_tenant(Tenant("a", "a", version=1), expected_version=None)
    second = Tenant("a", "a", queue_items_max=5, version=2)
    assert await world.store.put_tenant(second, expected_version=1) is Written.DONE
    assert await world.store.put_tenant(Tenant("a", "a", version=2), expected_version=1) is Written.CONFLICT
    assert await world.store.put_tenant(Tenant("b", "b"), expected_version=1) is Written.CONFLICT
    assert await world.store.get_tenant("a") == second
    assert await world.store.get_tenant("b") is None


async def test_tenants_are_listed_by_name_as_they_stand(world: World) -> None:
    assert list(await world.store.list_tenants()) == []
    for name in ("b", "c", "a"):
        await world.store.put_tenant(Tenant(name, name), expected_version=None)
    await world.store.put_tenant(Tenant("b", "b", version=2), expected_version=1)
    await world.store.delete_tenant("c")
    assert [(tenant.name, tenant.version) for tenant in await world.store.list_tenants()] == [("a", 1), ("b", 2)]


async def test_a_key_is_found_by_its_prefix_until_it_is_deleted(world: World) -> None:
    first, second = KeyRecord("p1", "d1", "a"), KeyRecord("p2", "d2", "a", START + 60)
    for key in (first, second, KeyRecord("p3", "d3", "b")):
        await world.store.put_key(key)
    assert await world.store.find_key("p1") == first
    assert await world.store.find_key("p") is None
    assert list(await world.store.keys_of("a")) == [first, second]
    await world.store.delete_key("p1")
    await world.store.delete_key("p1")
    assert await world.store.find_key("p1") is None
    assert list(await world.store.keys_of("a")) == [second]


async def test_an_expired_key_is_none_at_its_second(world: World) -> None:
    await world.store.put_key(KeyRecord("p", "d", "a", START + 60))
    world.clock.time = START + 59.9
    assert await world.store.find_key("p") is not None
    world.clock.time = START + 60
    assert await world.store.find_key("p") is None
    assert list(await world.store.keys_of("a")) == []


async def test_deleting_a_tenant_deletes_its_keys_and_no_others(world: World) -> None:
    await world.store.register(worker())
    for name in ("a", "ab"):
        await world.store.put_tenant(Tenant(name, name), expected_version=None)
        for number in range(3):
            await world.store.put_key(KeyRecord(f"{name}-{number}", "d", name))
    running = await world.admitted(invocation("i"), Slot("w", 0))
    await world.store.delete_tenant("a")
    await world.store.delete_tenant("a")
    assert await world.store.get_tenant("a") is None
    assert await world.store.find_key("a-0") is None
    assert list(await world.store.keys_of("a")) == []
    assert len(await world.store.keys_of("ab")) == 3
    assert await world.store.get("a", "i") == running
