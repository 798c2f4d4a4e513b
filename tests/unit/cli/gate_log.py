"""A data folder of `headgate serve` with a short history: two tenants on one worker, written through a real replica."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Offer, Outcome, Report
from dispatcher.model.tenants import Tenant
from dispatcher.processes.bootstrap import RealClock
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.settings import ShardSettings
from dispatcher.stores.sqlite.store import SqliteStore
from headgate.serve.folder import DataFolder

SLOTS = 2
WRITER = "writer"
FIRST_TOKEN_S = 0.25


def make_folder(path: Path) -> DataFolder:
    """Make a folder with an empty database."""
    folder = DataFolder(path)
    folder.prepare()
    asyncio.run(_closed(SqliteStore(folder.database, RealClock())))
    return folder


async def _closed(store: SqliteStore) -> None:
    await store.list_tenants()
    await store.close()


def add_older_tenant(database: str | Path, name: str) -> None:
    """Store a tenant from before there were identities: its identity is its name."""

    async def run() -> None:
        store = SqliteStore(database, RealClock())
        await store.put_tenant(Tenant(name), expected_version=None)
        await store.close()

    asyncio.run(run())


def write_history(folder: DataFolder) -> None:
    """Tenant a: one call that ended (10 input, 4 output tokens), one that runs, one that waits. Tenant b: one runs."""
    asyncio.run(_write_history(folder))


async def _write_history(folder: DataFolder) -> None:
    store = SqliteStore(folder.database, RealClock())
    replica = Replica(store.log("default"), ShardSettings(), RealClock(), WRITER)
    try:
        await _do(replica, Report("w-1", "http://w", "m", SLOTS, 4096, 4.0, 90.0, False, 0.1, 0, ()))
        offer = await _do(replica, accept(1, "a"))
        assert isinstance(offer, Offer)
        await _do(replica, End(offer.id, offer.attempt, "done", 10, 4, "a", "", FIRST_TOKEN_S))
        for number, tenant in ((2, "a"), (3, "b"), (4, "a")):
            await _do(replica, accept(number, tenant))
    finally:
        await store.close()


async def _do(replica: Replica, command: Command) -> Outcome:
    return (await replica.commit([command])).outcomes[0]


def accept(number: int, tenant: str) -> Accept:
    deadline_at = RealClock().now() + 600
    share = (1, 1.0, 50.0, 100.0, "standard", 10) if tenant == "a" else (1, 2.0, 0.0, 0.0, "premium", 10)
    return Accept(
        f"{WRITER}-{number}",
        0,
        WRITER,
        CallTerms(tenant, "m", 20.0, deadline_at, False, "chat", ""),
        TenantConfig(*share),
    )
