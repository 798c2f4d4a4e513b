"""Kept responses in SQLite."""

from __future__ import annotations

import sqlite3

from dispatcher.model.kept_response import KeptResponse
from dispatcher.model.usage import HOUR_S
from dispatcher.ports import Clock
from dispatcher.stores.limits import counted_until
from dispatcher.stores.sqlite.database import Database

FORGOTTEN_AT_ONCE_MAX = 20
"""Each kept response deletes at most this many expired ones. So all are deleted in time, without a long pause."""
_ROW = "SELECT content, expires_at FROM responses WHERE tenant = ? AND id = ? AND expires_at > ?"


class SqliteResponses:
    """dispatcher.model.kept_response.ResponseStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        now, size = self._clock.now(), len(response.content)

        def apply(connection: sqlite3.Connection) -> bool:
            _forget(connection, now)
            total = "SELECT COALESCE(SUM(bytes), 0) FROM response_bytes WHERE tenant = ? AND hour > ?"
            (counted,) = connection.execute(total, (response.tenant, now // HOUR_S)).fetchone()
            if counted + size > bytes_max:
                return False
            _drop(connection, response.tenant, response.id)
            row = (response.tenant, response.id, response.expires_at, response.content)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?)", row)
            _count(connection, response, size)
            return True

        return await self._database.write(apply, synced=True)

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        named = (tenant, response_id, self._clock.now())
        row = await self._database.read(lambda db: db.execute(_ROW, named).fetchone())
        return None if row is None else KeptResponse(tenant, response_id, bytes(row[0]), row[1])

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        named = (tenant, response_id, self._clock.now())

        def apply(connection: sqlite3.Connection) -> bool:
            is_there = connection.execute(_ROW, named).fetchone() is not None
            if is_there:
                _drop(connection, tenant, response_id)
            return is_there

        return await self._database.write(apply, synced=True)


def _drop(connection: sqlite3.Connection, tenant: str, response_id: str) -> None:
    """Delete the response, if there is one, and give its bytes back."""
    delete = "DELETE FROM responses WHERE tenant = ? AND id = ? RETURNING content, expires_at"
    for content, expires_at in connection.execute(delete, (tenant, response_id)).fetchall():
        _count(connection, KeptResponse(tenant, response_id, content, expires_at), -len(content))


def _count(connection: sqlite3.Connection, response: KeptResponse, size: int) -> None:
    add = "INSERT INTO response_bytes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes"
    connection.execute(add, (response.tenant, counted_until(response), size))


def _forget(connection: sqlite3.Connection, now: float) -> None:
    """Delete some expired responses, and the bytes of past hours."""
    expired = "SELECT rowid FROM responses WHERE expires_at <= ? LIMIT ?"
    forget = f"DELETE FROM responses WHERE rowid IN ({expired})"  # noqa: S608
    connection.execute(forget, (now, FORGOTTEN_AT_ONCE_MAX))
    connection.execute("DELETE FROM response_bytes WHERE hour <= ?", (now // HOUR_S,))
