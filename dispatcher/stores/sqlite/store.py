"""The store in one SQLite file, for the gate of one machine. database.py lists what survives each failure."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dispatcher.ports import Clock
from dispatcher.stores.sqlite.batches import SqliteBatches
from dispatcher.stores.sqlite.database import Database
from dispatcher.stores.sqlite.invocations import SqliteInvocations
from dispatcher.stores.sqlite.log import SqliteLog
from dispatcher.stores.sqlite.mailboxes import SqliteMailboxes
from dispatcher.stores.sqlite.responses import SqliteResponses
from dispatcher.stores.sqlite.tenants import SqliteTenants
from dispatcher.stores.sqlite.usage import SqliteUsage


class SqliteStore(SqliteTenants, SqliteInvocations, SqliteResponses, SqliteBatches, SqliteUsage):
    """dispatcher.ports.Store."""

    def __init__(self, path: str | Path, clock: Clock) -> None:
        """Open the file, or create it. Raises ConfigurationError."""
        self._database = Database(path)
        self._clock = clock
        self._mailboxes = SqliteMailboxes(self._database, clock)

    @property
    def mailboxes(self) -> SqliteMailboxes:
        return self._mailboxes

    def log(self, shard: str) -> SqliteLog:
        return SqliteLog(self._database, shard, self._clock)

    async def erase(self, tenant: str) -> None:
        def apply(connection: sqlite3.Connection) -> None:
            for table in ("responses", "response_bytes", "files", "batches"):
                connection.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))  # noqa: S608
            connection.execute("DELETE FROM invocations WHERE tenant = ? AND answer IS NOT NULL", (tenant,))

        await self._database.write(apply, synced=True)

    async def close(self) -> None:
        await self._database.close()
