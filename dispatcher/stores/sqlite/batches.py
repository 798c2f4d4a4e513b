"""Records of files and batches in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict

from dispatcher.model.batches import Batch, batch_record, to_batch
from dispatcher.model.files import FileRecord
from dispatcher.ports import Clock
from dispatcher.stores.sqlite.database import Database

FORGOTTEN_AT_ONCE_MAX = 20
"""Each new file or batch deletes at most this many expired ones of both."""


class SqliteBatches:
    """dispatcher.model.files.FileRecords and dispatcher.model.batches.BatchStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def put_file(self, record: FileRecord) -> None:
        row = (record.tenant, record.id, record.expires_at, json.dumps(asdict(record)))

        def apply(connection: sqlite3.Connection) -> None:
            _forget(connection, self._clock.now())
            connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", row)

        await self._database.write(apply, synced=True)

    async def file(self, tenant: str, file_id: str) -> FileRecord | None:
        found = await self._records("files", "tenant = ? AND id = ?", tenant, file_id)
        return FileRecord(**json.loads(found[0])) if found else None

    async def files(self, tenant: str) -> Sequence[FileRecord]:
        return [FileRecord(**json.loads(record)) for record in await self._records("files", "tenant = ?", tenant)]

    async def delete_file(self, tenant: str, file_id: str) -> bool:
        delete = "DELETE FROM files WHERE tenant = ? AND id = ? RETURNING expires_at"
        row = await self._database.write(lambda db: db.execute(delete, (tenant, file_id)).fetchone(), synced=True)
        return row is not None and self._clock.now() < row[0]

    async def create_batch(self, batch: Batch) -> None:
        row = (batch.tenant, batch.id, batch.pool, 1, batch.version, batch.forgotten_at, _text(batch))

        def apply(connection: sqlite3.Connection) -> None:
            _forget(connection, self._clock.now())
            connection.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", row)

        await self._database.write(apply, synced=True)

    async def batch(self, tenant: str, batch_id: str) -> Batch | None:
        found = await self._records("batches", "tenant = ? AND id = ?", tenant, batch_id)
        return to_batch(json.loads(found[0])) if found else None

    async def batches(self, tenant: str) -> Sequence[Batch]:
        return [to_batch(json.loads(record)) for record in await self._records("batches", "tenant = ?", tenant)]

    async def replace_batch(self, batch: Batch, expected_version: int) -> bool:
        update = (
            "UPDATE batches SET version = ?, record = ? WHERE tenant = ? AND id = ? AND version = ? AND expires_at > ?"
        )
        values = (batch.version, _text(batch), batch.tenant, batch.id, expected_version, self._clock.now())
        return await self._database.write(lambda db: bool(db.execute(update, values).rowcount), synced=True)

    async def open_batches(self, pool: str) -> Sequence[tuple[str, str]]:
        query = "SELECT tenant, id FROM batches WHERE is_open AND pool = ? ORDER BY id"
        return await self._database.read(lambda db: db.execute(query, (pool,)).fetchall())

    async def retire_batch(self, batch: Batch) -> None:
        close = "UPDATE batches SET is_open = 0 WHERE tenant = ? AND id = ?"
        await self._database.write(lambda db: db.execute(close, (batch.tenant, batch.id)), synced=True)

    async def _records(self, table: str, condition: str, *values: str) -> list[str]:
        """Return the records that have not expired, the newest first."""
        query = f"SELECT record FROM {table} WHERE {condition} AND expires_at > ? ORDER BY id DESC"  # noqa: S608
        named = (*values, self._clock.now())
        rows = await self._database.read(lambda db: db.execute(query, named).fetchall())
        return [record for (record,) in rows]


def _text(batch: Batch) -> str:
    return json.dumps(batch_record(batch))


def _forget(connection: sqlite3.Connection, now: float) -> None:
    """Delete some expired records."""
    for table in ("files", "batches"):
        expired = f"SELECT tenant, id FROM {table} WHERE expires_at <= ? LIMIT ?"  # noqa: S608
        forget = f"DELETE FROM {table} WHERE (tenant, id) IN ({expired})"  # noqa: S608
        connection.execute(forget, (now, FORGOTTEN_AT_ONCE_MAX))
