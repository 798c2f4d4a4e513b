"""Read models: a row is replaced only by a row that contains more of the log."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.model.usage import UsageRow
from dispatcher.ports import Store
from dispatcher.stores.layout import TENANT_ROW_KEEP_S
from tests.conformance.store_world import SHARD, FakeClock, tenant_row, usage_row

HOURS = [276, 277, 278, 311, 312, 360]


async def of_shard(store: Store, tenant: str | None, first_hour: int, last_hour: int) -> list[UsageRow]:
    """Return the rows, all of which must be of this shard."""
    found = await store.usage(tenant, first_hour, last_hour)
    assert {shard for shard, _ in found} <= {SHARD}
    return [row for _, row in found]


async def test_rows_are_read_as_they_were_written(store: Store) -> None:
    rows = [usage_row("a", "x", service=0.1), usage_row("a", "é#\U0001f600", requests=10**12), usage_row("b", "")]
    await store.put_usage(SHARD, rows)
    await store.put_usage(SHARD, [])
    assert await of_shard(store, None, 277, 277) == rows
    assert await of_shard(store, "a", 0, 1000) == rows[:2]
    assert list(await store.usage("c", 0, 1000)) == []


async def test_rows_are_chosen_by_hour_and_tenant_and_ordered(store: Store) -> None:
    names = [(hour, tenant, app) for hour in HOURS for tenant in ("a", "ab", "b") for app in ("", "x")]
    await store.put_usage(SHARD, [usage_row(tenant, app, hour) for hour, tenant, app in reversed(names)])
    assert [(row.hour, row.tenant, row.app) for _, row in await store.usage(None, 277, 312)] == [
        name for name in names if 277 <= name[0] <= 312
    ]
    assert [(row.hour, row.app) for _, row in await store.usage("a", 278, 360)] == [
        (hour, app) for hour, tenant, app in names if tenant == "a" and hour >= 278
    ]
    assert list(await store.usage(None, 279, 310)) == []


async def test_only_a_higher_position_replaces_a_row(store: Store) -> None:
    await store.put_usage(SHARD, [usage_row(position=10)])
    await store.put_usage(SHARD, [usage_row(position=9, requests=90), usage_row("b", position=1)])
    await store.put_usage(SHARD, [usage_row(position=10, requests=100)])
    assert await of_shard(store, None, 277, 277) == [usage_row(position=10), usage_row("b", position=1)]
    await store.put_usage(SHARD, [usage_row(position=11, requests=2)])
    assert await of_shard(store, "a", 277, 277) == [usage_row(position=11, requests=2)]


async def test_each_shard_has_its_own_rows(store: Store) -> None:
    """A tenant that moves to another pool within the hour has usage in both, and their positions say nothing."""
    app = "b#a"
    await store.put_usage("a", [usage_row(app=app, position=90, requests=7)])
    await store.put_usage("a.2", [usage_row(app=app, position=5, requests=2)])
    assert [(shard, row.requests) for shard, row in await store.usage("a", 277, 277)] == [("a", 7), ("a.2", 2)]


async def test_tenant_rows_are_read_as_they_were_written(store: Store) -> None:
    rows = [tenant_row("a"), tenant_row("b", clocks=(), credit=-1 / 3), tenant_row("c", tier="background")]
    await store.put_tenant_rows(SHARD, list(reversed(rows)))
    await store.put_tenant_rows("other", [tenant_row("d")])
    assert list(await store.tenant_rows(SHARD)) == rows
    assert list(await store.tenant_rows("none")) == []


async def test_only_a_higher_position_replaces_a_tenants_row(store: Store) -> None:
    await store.put_tenant_rows(SHARD, [tenant_row(position=10)])
    for position in (9, 10):
        await store.put_tenant_rows(SHARD, [tenant_row(position=position, waiting=99)])
    assert list(await store.tenant_rows(SHARD)) == [tenant_row(position=10)]
    newer = replace(tenant_row(position=11), waiting=0)
    await store.put_tenant_rows(SHARD, [newer])
    assert list(await store.tenant_rows(SHARD)) == [newer]


async def test_the_state_of_a_tenant_that_is_gone_expires(store: Store, clock: FakeClock) -> None:
    await store.put_tenant_rows(SHARD, [tenant_row()])
    clock.time += TENANT_ROW_KEEP_S
    assert list(await store.tenant_rows(SHARD)) == []
