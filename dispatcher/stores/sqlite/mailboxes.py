"""Mailboxes in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from dispatcher.ports import Clock
from dispatcher.stores.limits import MAILBOX_KEEP_S
from dispatcher.stores.sqlite.database import Database

FORGOTTEN_AT_ONCE_MAX = 100


class SqliteMailboxes:
    """dispatcher.ports.MailboxStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def put(self, process: str, position: int, news: Sequence[bytes]) -> None:
        now = self._clock.now()
        rows = [(process, position, each, now + MAILBOX_KEEP_S) for each in news]

        def apply(connection: sqlite3.Connection) -> None:
            expired = "SELECT rowid FROM mailboxes WHERE expires_at <= ? LIMIT ?"
            forget = f"DELETE FROM mailboxes WHERE rowid IN ({expired})"  # noqa: S608
            connection.execute(forget, (now, FORGOTTEN_AT_ONCE_MAX))
            connection.executemany("INSERT OR REPLACE INTO mailboxes VALUES (?, ?, ?, ?)", rows)

        await self._database.write(apply, synced=False)

    async def read(self, process: str, after: int) -> Sequence[tuple[int, bytes]]:
        query = "SELECT position, news FROM mailboxes WHERE process = ? AND position > ? AND expires_at > ?"
        values = (process, after, self._clock.now())
        rows = await self._database.read(lambda db: db.execute(f"{query} ORDER BY position, rowid", values).fetchall())
        return [(position, bytes(news)) for position, news in rows]
