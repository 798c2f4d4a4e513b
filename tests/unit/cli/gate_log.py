"""A data folder of `headgate serve` with a short history: two tenants on one worker, written through a real replica."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dispatcher.model.commands import Accept, Command, End, Report
from dispatcher.model.tenants import Tenant
from dispatcher.processes.bootstrap import RealClock
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.settings import ShardSettings
from dispatcher.stores.sqlite.store import SqliteStore
from headgate.serve.folder import DataFolder
from tests.support.world import processes

SLOTS = 2
WRITER = "writer"
FIRST_TOKEN_S = 0.25


def make_folder(path: Path) -> DataFolder:
    """Make a folder with an empty database."""
    folder = DataFolder(path)
    folder.prepare()
    write(folder.database)
    return folder


def add_older_tenant(database: str | Path, name: str) -> None:
    """Store a tenant from before there were identities: its identity is its name."""

    async def run() -> None:
        store = SqliteStore(database, RealClock())
        await store.put_tenant(Tenant(name), expected_version=None)
        await store.close()

    asyncio.run(run())


def write(database: str | Path, *commands: Command, pool: str = "default") -> None:
    """Write each command as an entry of the pool's log. None: the database is made, and empty."""

    async def run() -> None:
        store = SqliteStore(database, RealClock())
        try:
            await store.list_tenants()
            replica = Replica(store.log(pool), ShardSettings(), RealClock(), WRITER)
            for command in commands:
                await replica.commit([command])
        finally:
            await store.close()

    asyncio.run(run())


def write_history(folder: DataFolder, cost: float = 20.0) -> None:
    """Tenant a: one call that ended (10 input, 4 output tokens), one that runs, one that waits. Tenant b: one runs.

    `cost`: of each call that runs or waits, in units of service.
    """
    write(
        folder.database,
        Report("w-1", "http://w", "m", SLOTS, 4096, 4.0, 90.0, False, 0.1, 0, ()),
        accept(1, "a"),
        End(f"{WRITER}-1", 1, "done", 10, 4, "a", "", FIRST_TOKEN_S),
        *(accept(number, tenant, cost=cost) for number, tenant in ((2, "a"), (3, "b"), (4, "a"))),
    )


def accept(number: int, tenant: str, **fields: Any) -> Accept:
    share: dict[str, Any] = (
        {"weight": 2.0, "tier": "premium"} if tenant == "b" else {"rate_per_s": 50.0, "burst": 100.0}
    )
    usual: dict[str, Any] = {"cost": 20.0, "app": "chat", "waiting_max": 10}
    return processes.accept(f"{WRITER}-{number}", WRITER, RealClock().now(), tenant, **{**usual, **share, **fields})
