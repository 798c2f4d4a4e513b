"""The store in one SQLite file, for the gate of one machine, and its log. database.py lists what survives each failure.

A snapshot of the log is one row, written in one transaction. Its checksum shows damage of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from dispatcher.ports import Clock
from dispatcher.stores.layout import CUT_AFTER_S, checked_entry, checked_shard, gap_at
from dispatcher.stores.records.record_store import RecordStore
from dispatcher.stores.snapshot_parts import checksum
from dispatcher.stores.sqlite.database import Database
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


_ENTRIES_CUT_AT_ONCE = 500
"""The entries that one transaction deletes. This takes some milliseconds."""


class SqliteLog:
    """dispatcher.ports.Log."""

    def __init__(self, database: Database, shard: str, clock: Clock) -> None:
        self._database = database
        self._shard = checked_shard(shard)
        self._clock = clock

    async def append(self, position: int, entry: bytes) -> bytes:
        checked_entry(position, entry)
        row = (self._shard, position, entry, self._clock.now())

        def apply(connection: sqlite3.Connection) -> bytes:
            if connection.execute("INSERT INTO log VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row).rowcount:
                return entry
            query = "SELECT entry FROM log WHERE shard = ? AND position = ?"
            return bytes(connection.execute(query, row[:2]).fetchone()[0])

        return await self._database.write(apply, synced=False)

    async def read(self, position: int, limit: int = 1000) -> Sequence[bytes]:
        query = "SELECT position, entry FROM log WHERE shard = ? AND position >= ? ORDER BY position LIMIT ?"
        rows = await self._database.read(lambda db: db.execute(query, (self._shard, position, limit)).fetchall())
        found = [bytes(entry) for number, (at, entry) in enumerate(rows) if at == position + number]
        if len(found) < len(rows):
            raise gap_at(self._shard, position + len(found))
        return found

    async def last(self) -> tuple[int, bytes] | None:
        query = "SELECT position, entry FROM log WHERE shard = ? ORDER BY position DESC LIMIT 1"
        row = await self._database.read(lambda db: db.execute(query, (self._shard,)).fetchone())
        return None if row is None else (row[0], bytes(row[1]))

    async def save_snapshot(self, position: int, nonce: str, state: bytes) -> None:
        row = (self._shard, position, nonce, state, checksum(state), self._clock.now())
        put = "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)"
        await self._database.write(lambda db: db.execute(put, row), synced=False)

    async def load_snapshot(self) -> tuple[int, bytes] | None:
        return await self._database.read(self._load_snapshot)

    def _load_snapshot(self, connection: sqlite3.Connection) -> tuple[int, bytes] | None:
        query = "SELECT position, state, checksum FROM snapshots WHERE shard = ? ORDER BY position DESC, nonce DESC"
        for position, state, expected in connection.execute(query, (self._shard,)):
            if checksum(state) == expected:
                return position, bytes(state)
        return None

    async def cut(self, position: int) -> None:
        """Delete from the lowest position on, in short transactions, because all processes' appends wait meanwhile.

        The deletion ends at the first rows that are too young. Otherwise every cut would read the entries of a day.
        """
        for table, key, at_once in (("log", "shard, position", _ENTRIES_CUT_AT_ONCE), ("snapshots", "rowid", 1)):
            lowest = f"SELECT {key} FROM {table} WHERE shard = ? AND position < ? ORDER BY position LIMIT {at_once}"  # noqa: S608
            delete = f"DELETE FROM {table} WHERE ({key}) IN ({lowest}) AND written_at <= ?"  # noqa: S608
            while await self._delete(delete, position) == at_once:
                pass

    async def _delete(self, delete: str, position: int) -> int:
        which = (self._shard, position, self._clock.now() - CUT_AFTER_S)
        return await self._database.write(lambda db: db.execute(delete, which).rowcount, synced=False)
