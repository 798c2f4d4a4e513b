"""Read models in SQLite: usage by hour, and the state of tenants."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from dispatcher.model.usage import HOUR_S, TenantRow, UsageRow
from dispatcher.ports import Clock
from dispatcher.stores.limits import TENANT_ROW_KEEP_S, USAGE_KEEP_S, checked_shard
from dispatcher.stores.records import tenant_row_record, to_tenant_row, to_usage, usage_record
from dispatcher.stores.sqlite.database import Database

FORGOTTEN_AT_ONCE_MAX = 1000
"""Each projection deletes at most this many expired rows. That is more than it adds, and causes no long pause."""
_IF_NEWER = "DO UPDATE SET position = excluded.position, record = excluded.record WHERE excluded.position > position"


class SqliteUsage:
    """dispatcher.ports.UsageStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def put_usage(self, shard: str, rows: Sequence[UsageRow]) -> None:
        put = f"INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT {_IF_NEWER}"  # noqa: S608
        named = checked_shard(shard)
        values = [(row.hour, row.tenant, row.app, named, row.position, json.dumps(usage_record(row))) for row in rows]
        old = "SELECT hour, tenant, app, shard FROM usage WHERE hour < ? LIMIT ?"
        forget = f"DELETE FROM usage WHERE (hour, tenant, app, shard) IN ({old})"  # noqa: S608
        oldest = int((self._clock.now() - USAGE_KEEP_S) // HOUR_S)

        def apply(connection: sqlite3.Connection) -> None:
            connection.execute(forget, (oldest, FORGOTTEN_AT_ONCE_MAX))
            connection.executemany(put, values)

        await self._database.write(apply, synced=False)

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[str, UsageRow]]:
        chosen = "hour BETWEEN ? AND ?" + (" AND tenant = ?" if tenant is not None else "")
        query = f"SELECT shard, record FROM usage WHERE {chosen} ORDER BY hour, tenant, app, shard"  # noqa: S608
        values = (first_hour, last_hour, *([] if tenant is None else [tenant]))
        rows = await self._database.read(lambda db: db.execute(query, values).fetchall())
        return [(shard, to_usage(json.loads(record))) for shard, record in rows]

    async def put_tenant_rows(self, shard: str, rows: Sequence[TenantRow]) -> None:
        put = f"INSERT INTO tenant_rows VALUES (?, ?, ?, ?) ON CONFLICT {_IF_NEWER}"  # noqa: S608
        named = checked_shard(shard)
        values = [(named, row.tenant, row.position, json.dumps(tenant_row_record(row))) for row in rows]
        await self._database.write(lambda db: db.executemany(put, values), synced=False)

    async def tenant_rows(self, shard: str) -> Sequence[TenantRow]:
        query = "SELECT record FROM tenant_rows WHERE shard = ? ORDER BY tenant"
        rows = await self._database.read(lambda db: db.execute(query, (shard,)).fetchall())
        found, now = [to_tenant_row(json.loads(record)) for (record,) in rows], self._clock.now()
        return [row for row in found if now < row.at + TENANT_ROW_KEEP_S]
