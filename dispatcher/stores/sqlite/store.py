"""The store in one SQLite file, for the gate of one machine. database.py lists what survives each failure."""

from __future__ import annotations

from pathlib import Path

from dispatcher.ports import Clock
from dispatcher.stores.records.record_store import RecordStore
from dispatcher.stores.sqlite.database import Database
from dispatcher.stores.sqlite.log import SqliteLog
from dispatcher.stores.sqlite.migration import migrate
from dispatcher.stores.sqlite.table import SqliteTable


class SqliteStore(RecordStore):
    """dispatcher.ports.Store."""

    def __init__(self, path: str | Path, clock: Clock) -> None:
        """Open the file, or create it, and migrate it if it is older. Raises ConfigurationError."""
        migrate(Path(path))
        self._database = Database(path)
        self._clock = clock
        super().__init__(SqliteTable(self._database, clock))

    def log(self, shard: str) -> SqliteLog:
        return SqliteLog(self._database, shard, self._clock)

    async def close(self) -> None:
        await self._database.close()
