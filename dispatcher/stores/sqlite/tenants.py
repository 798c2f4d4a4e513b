"""Tenants and keys in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from dispatcher.model.audit import AuditRecord
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.ports import Clock
from dispatcher.stores.records import (
    audit_record,
    is_valid,
    key_record,
    tenant_record,
    to_audit,
    to_key,
    to_tenant,
    when,
)
from dispatcher.stores.sqlite.database import Database


class SqliteTenants:
    """dispatcher.model.tenant_store.TenantStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find_key(self, prefix: str) -> KeyRecord | None:
        found = await self._keys("prefix = ?", prefix)
        return found[0] if found else None

    async def get_tenant(self, name: str) -> Tenant | None:
        query = "SELECT record FROM tenants WHERE name = ?"
        row = await self._database.read(lambda db: db.execute(query, (name,)).fetchone())
        return None if row is None else to_tenant(json.loads(row[0]))

    async def put_tenant(
        self, tenant: Tenant, *, expected_version: int | None, audit: AuditRecord | None = None
    ) -> bool:
        record = json.dumps(tenant_record(tenant))

        def apply(connection: sqlite3.Connection) -> bool:
            if expected_version is None:
                insert = "INSERT INTO tenants VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
                written = connection.execute(insert, (tenant.name, tenant.version, record)).rowcount
            else:
                update = "UPDATE tenants SET version = ?, record = ? WHERE name = ? AND version = ?"
                fields = (tenant.version, record, tenant.name, expected_version)
                written = connection.execute(update, fields).rowcount
            if written:
                _note(connection, audit)
            return bool(written)

        return await self._database.write(apply, synced=True)

    async def list_tenants(self) -> Sequence[Tenant]:
        query = "SELECT record FROM tenants ORDER BY name"
        rows = await self._database.read(lambda db: db.execute(query).fetchall())
        return [to_tenant(json.loads(record)) for (record,) in rows]

    async def delete_tenant(self, name: str, *, audit: AuditRecord | None = None) -> None:
        def apply(connection: sqlite3.Connection) -> None:
            _note(connection, audit)
            connection.execute("DELETE FROM keys WHERE tenant = ?", (name,))
            connection.execute("DELETE FROM tenants WHERE name = ?", (name,))

        await self._database.write(apply, synced=True)

    async def put_key(self, key: KeyRecord, *, audit: AuditRecord | None = None) -> None:
        row = (key.prefix, key.tenant, json.dumps(key_record(key)))

        def apply(connection: sqlite3.Connection) -> None:
            _note(connection, audit)
            connection.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?)", row)

        await self._database.write(apply, synced=True)

    async def delete_key(self, prefix: str, *, audit: AuditRecord | None = None) -> None:
        def apply(connection: sqlite3.Connection) -> None:
            if connection.execute("DELETE FROM keys WHERE prefix = ?", (prefix,)).rowcount:
                _note(connection, audit)

        await self._database.write(apply, synced=True)

    async def keys_of(self, tenant: str) -> Sequence[KeyRecord]:
        return await self._keys("tenant = ?", tenant)

    async def audit_records(self, month: str) -> Sequence[AuditRecord]:
        query = "SELECT record FROM audit WHERE month = ? ORDER BY at"
        rows = await self._database.read(lambda db: db.execute(query, (month,)).fetchall())
        return [to_audit(json.loads(record)) for (record,) in rows]

    async def _keys(self, condition: str, value: str) -> list[KeyRecord]:
        query = f"SELECT record FROM keys WHERE {condition} ORDER BY prefix"  # noqa: S608
        rows = await self._database.read(lambda db: db.execute(query, (value,)).fetchall())
        now = self._clock.now()
        return [key for (record,) in rows if is_valid(key := to_key(json.loads(record)), now)]


def _note(connection: sqlite3.Connection, audit: AuditRecord | None) -> None:
    if audit is not None:
        row = (audit.month, when(audit), json.dumps(audit_record(audit)))
        connection.execute("INSERT INTO audit VALUES (?, ?, ?)", row)
