"""Durable invocations in SQLite."""

from __future__ import annotations

import json
import sqlite3

from dispatcher.model.invocation import Invocation, StoredAnswer
from dispatcher.ports import Clock
from dispatcher.stores.limits import checked_invocation, expires_at, fitting_answer
from dispatcher.stores.records import answer_record, invocation_record, to_answer, to_invocation
from dispatcher.stores.sqlite.database import Database

FORGOTTEN_AT_ONCE_MAX = 20
"""Each new invocation deletes at most this many expired ones. So all are deleted in time, without a long pause."""
_UNSHARED = "json_extract(record, '$.shared') IS NULL"
_ROW = "SELECT record, body, answer FROM invocations WHERE expires_at > ? AND "


class SqliteInvocations:
    """dispatcher.ports.InvocationStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(self, invocation: Invocation) -> Invocation:
        now, row = self._clock.now(), _row(checked_invocation(invocation))

        def apply(connection: sqlite3.Connection) -> Invocation:
            _forget(connection, invocation, now)
            insert = "INSERT INTO invocations VALUES (?, ?, ?, ?, ?, ?, NULL) ON CONFLICT DO NOTHING"
            if connection.execute(insert, row).rowcount:
                return invocation
            same_key = "((tenant = ? AND key = ? AND key <> '') OR id = ?) ORDER BY id = ? LIMIT 1"
            named = (now, invocation.tenant, invocation.key, invocation.id, invocation.id)
            return _invocation(connection.execute(_ROW + same_key, named).fetchone())

        return await self._database.write(apply, synced=True)

    async def get(self, invocation_id: str) -> Invocation | None:
        return await self._one("id = ?", invocation_id)

    async def find(self, tenant: str, key: str) -> Invocation | None:
        return await self._one("tenant = ? AND key = ? AND key <> ''", tenant, key)

    async def answer(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        return await self._keep(invocation_id, answer, "answer IS NULL")

    async def share(self, invocation_id: str) -> Invocation | None:
        named = (invocation_id, self._clock.now())

        def apply(connection: sqlite3.Connection) -> Invocation | None:
            shared = "UPDATE invocations SET record = json_set(record, '$.shared', json('true'))"
            connection.execute(f"{shared} WHERE id = ? AND expires_at > ? AND answer IS NULL", named)
            row = connection.execute(_ROW + "id = ?", named[::-1]).fetchone()
            return None if row is None else _invocation(row)

        return await self._database.write(apply, synced=True)

    async def refuse(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        return await self._keep(invocation_id, answer, f"answer IS NULL AND {_UNSHARED}")

    async def _keep(self, invocation_id: str, answer: StoredAnswer, condition: str) -> StoredAnswer | None:
        text, named = json.dumps(answer_record(fitting_answer(answer))), (invocation_id, self._clock.now())

        def apply(connection: sqlite3.Connection) -> StoredAnswer | None:
            where = "WHERE id = ? AND expires_at > ?"
            update = f"UPDATE invocations SET answer = ?, body = NULL {where} AND {condition}"  # noqa: S608
            connection.execute(update, (text, *named))
            row = connection.execute(f"SELECT answer FROM invocations {where}", named).fetchone()  # noqa: S608
            return None if row is None or row[0] is None else to_answer(json.loads(row[0]))

        return await self._database.write(apply, synced=True)

    async def _one(self, condition: str, *values: str) -> Invocation | None:
        now = self._clock.now()
        row = await self._database.read(lambda db: db.execute(_ROW + condition, (now, *values)).fetchone())
        return None if row is None else _invocation(row)


def _row(invocation: Invocation) -> tuple[str | float | None, ...]:
    record = json.dumps(invocation_record(invocation) | {"body": None})
    return invocation.id, invocation.tenant, invocation.key, expires_at(invocation), record, invocation.body


def _invocation(row: tuple[str, str | None, str | None]) -> Invocation:
    record, body, answer = row
    return to_invocation(json.loads(record) | {"body": body, "answer": json.loads(answer) if answer else None})


def _forget(connection: sqlite3.Connection, new: Invocation, now: float) -> None:
    """Delete some expired invocations, and those of the new one's key and id."""
    expired = "SELECT id FROM invocations WHERE expires_at <= ? LIMIT ?"
    connection.execute(f"DELETE FROM invocations WHERE id IN ({expired})", (now, FORGOTTEN_AT_ONCE_MAX))  # noqa: S608
    same = "DELETE FROM invocations WHERE expires_at <= ? AND (id = ? OR (tenant = ? AND key = ?))"
    connection.execute(same, (now, new.id, new.tenant, new.key))
