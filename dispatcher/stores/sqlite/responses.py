"""Kept responses in SQLite."""

from __future__ import annotations

import sqlite3

from dispatcher.model.kept_response import KeptResponse
from dispatcher.ports import Clock
from dispatcher.stores.sqlite.database import Database

FORGOTTEN_AT_ONCE_MAX = 20
"""Each kept response deletes at most this many expired ones. So all are deleted in time, without a long pause."""
_LIVE = "tenant = ? AND id = ? AND expires_at > ?"


class SqliteResponses:
    """dispatcher.model.kept_response.ResponseStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        now, size = self._clock.now(), len(response.content)
        row = (response.tenant, response.id, response.expires_at, size, response.content)

        def apply(connection: sqlite3.Connection) -> bool:
            _forget(connection, now)
            total = "SELECT COALESCE(SUM(bytes), 0) FROM responses WHERE tenant = ? AND id <> ? AND expires_at > ?"
            (others,) = connection.execute(total, (response.tenant, response.id, now)).fetchone()
            if others + size > bytes_max:
                return False
            connection.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)", row)
            return True

        return await self._database.write(apply, synced=True)

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        query = f"SELECT content, expires_at FROM responses WHERE {_LIVE}"  # noqa: S608
        named = self._named(tenant, response_id)
        row = await self._database.read(lambda db: db.execute(query, named).fetchone())
        return None if row is None else KeptResponse(tenant, response_id, bytes(row[0]), row[1])

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        delete, named = f"DELETE FROM responses WHERE {_LIVE}", self._named(tenant, response_id)  # noqa: S608
        return await self._database.write(lambda db: bool(db.execute(delete, named).rowcount), synced=True)

    def _named(self, tenant: str, response_id: str) -> tuple[str, str, float]:
        return tenant, response_id, self._clock.now()


def _forget(connection: sqlite3.Connection, now: float) -> None:
    """Delete some expired responses."""
    expired = "SELECT rowid FROM responses WHERE expires_at <= ? LIMIT ?"
    forget = f"DELETE FROM responses WHERE rowid IN ({expired})"  # noqa: S608
    connection.execute(forget, (now, FORGOTTEN_AT_ONCE_MAX))
