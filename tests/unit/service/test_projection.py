"""Projections: only rows that changed, a bounded number after a snapshot, and no usage is lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from dispatcher.model.commands import call_id
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.usage import HOUR_S, TenantRow, UsageRow
from dispatcher.service import snapshots
from dispatcher.service.gate.replica import Replica
from dispatcher.service.log_keeper import LogKeeper
from dispatcher.service.snapshots import UNSAVED_S, Projection, Snapshots
from tests.support.world.memory_store import MemoryStore
from tests.support.world.processes import SHARD, World, accept, end, report

HOUR = 500_000
LONG_S = 100 * HOUR_S


class Rows:
    """ports.UsageStore that keeps what is written, in order. `away`: it answers nothing."""

    def __init__(self) -> None:
        self.usage: list[UsageRow] = []
        self.tenants: list[TenantRow] = []
        self.away = False

    async def put_usage(self, shard: str, rows: Sequence[UsageRow]) -> None:
        if self.away:
            raise StoreUnavailable
        self.usage += rows

    async def put_tenant_rows(self, shard: str, rows: Sequence[TenantRow]) -> None:
        if self.away:
            raise StoreUnavailable
        self.tenants += rows

    def taken(self) -> tuple[list[str], list[str]]:
        """Return the tenants of the rows since the last call."""
        names = sorted(row.tenant for row in self.usage), sorted(row.tenant for row in self.tenants)
        self.usage.clear()
        self.tenants.clear()
        return names


class Served:
    """A replica with a worker, at which calls are accepted and end."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, Rows()
        self.replica = self.world.replica("one")
        log = MemoryStore(self.world.clock, data=self.world.data).log(SHARD)
        self.kept = Snapshots(log, self.store, SHARD, self.world.clock, self.world.ids)  # type: ignore[arg-type]
        self._numbers = count(1)

    async def serve(self, *tenants: str) -> None:
        await self.replica.catch_up()
        await self.replica.commit([report("w")])
        for tenant in tenants:
            name = call_id("one", next(self._numbers))
            guarantee = {"rate_per_s": 5.0, "burst": 10.0}
            await self.replica.commit([accept(name, "one", self.world.clock.now(), tenant, **guarantee)])
            await self.replica.commit([end(name, 1)])

    async def save(self) -> tuple[list[str], list[str]]:
        """Make a snapshot. Return the tenants whose usage and whose state were projected."""
        await self.replica.commit([await self.kept.write(self.replica)])
        return self.store.taken()


@pytest.fixture
async def served(world: World) -> Served:
    return Served(world)


def tenant_row(name: str, **values: float) -> TenantRow:
    row = TenantRow(name, 1, "standard", 1.0, 0.0, 0.0, 0, 0, 0.0, 0.0, (0.0, 0.0), None, 1.0, 1)
    return replace(row, **values)  # type: ignore[arg-type]


async def test_only_rows_that_changed_are_projected(served: Served) -> None:
    await served.serve("a", "b", "c")
    assert await served.save() == (["a", "b", "c"], ["a", "b", "c"])
    await served.serve("b")
    assert await served.save() == (["b"], ["b"])
    assert await served.save() == ([], [])


async def test_a_new_process_projects_no_usage_again(served: Served) -> None:
    await served.serve("a", "b")
    await served.save()
    await served.replica.commit([report("w", 5)])
    other = served.world.replica("two")
    log = MemoryStore(served.world.clock, data=served.world.data).log(SHARD)
    await other.catch_up()
    kept = Snapshots(log, served.store, SHARD, served.world.clock, served.world.ids)  # type: ignore[arg-type]
    await kept.write(other)
    assert served.store.taken() == ([], ["a", "b"])


async def test_usage_outlives_a_store_that_takes_no_projection_for_days(served: Served) -> None:
    await served.serve("a")
    served.store.away = True
    for _ in range(30):
        await asyncio.sleep(HOUR_S)
        await served.serve("b")
        with pytest.raises(StoreUnavailable):
            await served.save()
    served.store.away = False
    usage, _ = await served.save()
    assert usage == ["a", *["b"] * 30]
    await asyncio.sleep(HOUR_S)
    await served.serve("b")
    rows = served.replica.shard.usage_rows()
    assert {row.tenant for row in rows} == {"b"}
    assert len(rows) <= 4


async def test_a_restart_between_projection_and_log_repeats_the_same_totals(served: Served) -> None:
    await served.serve("a", "a")
    await served.kept.write(served.replica)
    [first] = served.store.usage
    heir = Replica(served.world.store("two").log(SHARD), served.world.settings, served.world.clock, "two")
    await heir.catch_up()
    [(_, again)] = heir.shard.unsaved_usage()
    assert again == first


async def test_the_rows_after_one_snapshot_are_bounded_and_the_others_follow(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ROWS_MAX", 2)
    await served.serve("a", "b", "c", "d", "e")
    written = [await served.save() for _ in range(4)]
    assert written == [(["a", "b"], ["a", "b"]), (["c", "d"], ["c", "d"]), (["e"], ["e"]), ([], [])]


async def test_rows_that_always_change_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ROWS_MAX", 2)
    store, clock = Rows(), World().clock
    rows = Projection(store, SHARD, clock)  # type: ignore[arg-type]
    written = []
    for number in range(4):
        await rows.put_tenants([tenant_row(name, spent=number) for name in "abcd"])
        written.append(store.taken()[1])
    assert written == [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"]]


async def test_a_credit_that_only_grows_with_time_is_no_change() -> None:
    store, clock = Rows(), World().clock
    rows = Projection(store, SHARD, clock)  # type: ignore[arg-type]
    await rows.put_tenants([tenant_row("a", credit=1.0)])
    await rows.put_tenants([tenant_row("a", credit=2.0, at=9.0, position=9)])
    assert len(store.tenants) == 1
    await rows.put_tenants([tenant_row("a", credit=2.0, at=9.0, position=9, waiting=1)])
    assert len(store.tenants) == 2


async def test_at_most_fifty_rows_are_written_in_a_second() -> None:
    store, clock = Rows(), World().clock
    rows = Projection(store, SHARD, clock)  # type: ignore[arg-type]
    began = clock.monotonic()
    await rows.put_tenants([tenant_row(f"t{number}") for number in range(120)])
    usage = [(number, UsageRow(f"t{number}", "", HOUR, 1, 1, 1, 1.0, 9)) for number in range(120)]
    assert await rows.put_usage(usage, 130) == 130
    assert clock.monotonic() - began >= 6


async def test_the_keeper_says_in_the_log_what_it_projected(served: Served) -> None:
    await served.serve("a")
    store = MemoryStore(served.world.clock, data=served.world.data)
    await asyncio.sleep(UNSAVED_S)
    world = served.world
    assert await LogKeeper(store.log(SHARD), store, world.settings, SHARD, world.clock, world.ids).keep()
    assert (await world.folded()).shard.unsaved_usage() == []


@pytest.mark.parametrize("gates", [1, 2])
async def test_gate_processes_say_in_the_log_what_they_projected(served: Served, gates: int) -> None:
    """A leader without heirs makes the snapshots itself; with one, the heir makes them and informs the leader."""
    await served.serve("a")
    for number in range(gates):
        await served.world.gate(f"g{number}")
    await asyncio.sleep(UNSAVED_S + 60)
    assert (await served.world.folded()).shard.unsaved_usage() == []
    hour = int(served.world.clock.now() // HOUR_S)
    store = MemoryStore(served.world.clock, data=served.world.data)
    assert [row.tenant for _, row in await store.usage(None, hour - 2, hour)] == ["a"]
