"""Tenants and keys in SQLite. The column `name` has the identity, as in files of older versions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from dispatcher.model.audit import AuditRecord
from dispatcher.model.tenants import SEPARATOR, KeyRecord, Tenant, has_id, new_identity
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

_NAMED = "SELECT record FROM tenants WHERE name = ? OR (name > ? AND name < ?) ORDER BY name DESC LIMIT 1"
"""The tenant of a name. An identity with an id sorts after the name itself."""
_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)


class SqliteTenants:
    """dispatcher.model.tenant_store.TenantStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find_key(self, prefix: str) -> KeyRecord | None:
        found = await self._keys("prefix = ?", prefix)
        return found[0] if found else None

    async def get_tenant(self, identity: str) -> Tenant | None:
        query = "SELECT record FROM tenants WHERE name = ?"
        row = await self._database.read(lambda db: db.execute(query, (identity,)).fetchone())
        return None if row is None else to_tenant(json.loads(row[0]))

    async def find_tenant(self, name: str) -> Tenant | None:
        if has_id(name):
            return await self.get_tenant(name)
        row = await self._database.read(lambda db: db.execute(_NAMED, _range_of(name)).fetchone())
        return None if row is None else to_tenant(json.loads(row[0]))

    async def put_tenant(
        self, tenant: Tenant, *, expected_version: int | None, audit: AuditRecord | None = None
    ) -> bool:
        record = json.dumps(tenant_record(tenant))

        def apply(connection: sqlite3.Connection) -> bool:
            if expected_version is None:
                if connection.execute(_NAMED, _range_of(tenant.name)).fetchone() is not None:
                    return False
                insert = "INSERT INTO tenants VALUES (?, ?, ?)"
                written = connection.execute(insert, (tenant.identity, tenant.version, record)).rowcount
            else:
                update = "UPDATE tenants SET version = ?, record = ? WHERE name = ? AND version = ?"
                fields = (tenant.version, record, tenant.identity, expected_version)
                written = connection.execute(update, fields).rowcount
            if written:
                _note(connection, audit)
            return bool(written)

        return await self._database.write(apply, synced=True)

    async def list_tenants(self) -> Sequence[Tenant]:
        query = "SELECT record FROM tenants ORDER BY name"
        rows = await self._database.read(lambda db: db.execute(query).fetchall())
        return [to_tenant(json.loads(record)) for (record,) in rows]

    async def delete_tenant(self, identity: str, *, audit: AuditRecord | None = None) -> None:
        def apply(connection: sqlite3.Connection) -> None:
            _note(connection, audit)
            connection.execute("DELETE FROM keys WHERE tenant = ?", (identity,))
            connection.execute("DELETE FROM tenants WHERE name = ?", (identity,))

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

    async def keys_of(self, identity: str) -> Sequence[KeyRecord]:
        return await self._keys("tenant = ?", identity)

    async def audit_records(self, month: str) -> Sequence[AuditRecord]:
        query = "SELECT record FROM audit WHERE month = ? ORDER BY at"
        rows = await self._database.read(lambda db: db.execute(query, (month,)).fetchall())
        return [to_audit(json.loads(record)) for (record,) in rows]

    async def _keys(self, condition: str, value: str) -> list[KeyRecord]:
        query = f"SELECT record FROM keys WHERE {condition} ORDER BY prefix"  # noqa: S608
        rows = await self._database.read(lambda db: db.execute(query, (value,)).fetchall())
        now = self._clock.now()
        return [key for (record,) in rows if is_valid(key := to_key(json.loads(record)), now)]


def _range_of(name: str) -> tuple[str, str, str]:
    """Return the values of _NAMED: the name, and the bounds of all identities with this name."""
    return name, new_identity(name, ""), f"{name}{_AFTER_SEPARATOR}"


def _note(connection: sqlite3.Connection, audit: AuditRecord | None) -> None:
    if audit is not None:
        row = (audit.month, when(audit), json.dumps(audit_record(audit)))
        connection.execute("INSERT INTO audit VALUES (?, ?, ?)", row)
