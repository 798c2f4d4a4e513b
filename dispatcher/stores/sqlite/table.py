"""The table in SQLite: one row for each item, its attributes as JSON. Each method is a transaction.

Each put deletes some expired items. So all are deleted in time, without a long pause.
"""

from __future__ import annotations

import json
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from dispatcher.ports import Clock
from dispatcher.stores.sqlite.database import Database
from dispatcher.stores.table import (
    EXPIRY,
    PARTITION,
    SORT,
    Condition,
    ConditionFailed,
    DeleteItem,
    Item,
    Key,
    PutItem,
    check_conditions,
    key_of,
    update_item,
    without_none,
)

_FORGOTTEN_AT_ONCE_MAX = 20
"""Each put deletes at most this many expired items, and a put of many as many more. That is more than it adds."""
_LIVE = "SELECT pk, sk, expires_at, attributes FROM items WHERE (expires_at IS NULL OR expires_at > ?)"
_BYTES = "base64"
"""Bytes are in JSON a dictionary with this name alone."""


class SqliteTable:
    """dispatcher.stores.table.ItemTable."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._opened = 0
        """The number of this object in the file, from its first nonce on."""
        self._nonces = count()

    @property
    def clock(self) -> Clock:
        return self._clock

    async def nonce(self) -> str:
        if not self._opened:
            take = "UPDATE nonces SET taken = taken + 1 RETURNING taken"
            (self._opened,) = await self._database.write(lambda db: db.execute(take).fetchone(), synced=False)
        return f"{self._opened}-{next(self._nonces)}"

    async def get(self, key: Key) -> Item | None:
        now = self._clock.now()
        return await self._database.read(lambda connection: _get(connection, key, now))

    async def range(self, partition: str, low: str = "", high: str = "") -> Sequence[Item]:
        query = f"{_LIVE} AND pk = ? AND sk >= ?" + (" AND sk <= ?" if high else "")
        values = (self._clock.now(), partition, low, *([high] if high else []))
        rows = await self._database.read(lambda db: db.execute(f"{query} ORDER BY sk", values).fetchall())
        return [_item(row) for row in rows]

    async def put(self, item: Item, condition: Condition = None, *, synced: bool = True) -> Item | None:
        now = self._clock.now()

        def apply(connection: sqlite3.Connection) -> Item | None:
            _forget(connection, now, _FORGOTTEN_AT_ONCE_MAX)
            return _write(connection, [PutItem(item, condition)], now)[0]

        return await self._database.write(apply, synced=synced)

    async def put_each(self, puts: Sequence[PutItem], *, synced: bool = True) -> None:
        now = self._clock.now()

        def apply(connection: sqlite3.Connection) -> None:
            _forget(connection, now, _FORGOTTEN_AT_ONCE_MAX + len(puts))
            for each in puts:
                try:
                    _write(connection, [each], now)
                except ConditionFailed:
                    continue

        await self._database.write(apply, synced=synced)

    async def update(
        self,
        key: Key,
        values: Mapping[str, Any],
        *,
        removed: Sequence[str] = (),
        added: Mapping[str, int] | None = None,
        condition: Condition = None,
        returned: bool = False,
        synced: bool = True,
    ) -> Item | None:
        now = self._clock.now()

        def apply(connection: sqlite3.Connection) -> Item:
            new = update_item(key, _get(connection, key, now), values, removed, added)
            _write(connection, [PutItem(new, condition)], now)
            return new

        new = await self._database.write(apply, synced=synced)
        return new if returned else None

    async def transact(self, writes: Sequence[PutItem | DeleteItem], nonce: str) -> None:
        now = self._clock.now()
        await self._database.write(lambda connection: _write(connection, writes, now), synced=True)

    async def partitions(self, prefix: str) -> Sequence[str]:
        query = "SELECT DISTINCT pk FROM items WHERE pk >= ? AND pk < ? ORDER BY pk"
        bounds = (prefix, prefix + chr(0x10FFFF))
        rows = await self._database.read(lambda db: db.execute(query, bounds).fetchall())
        return [name for (name,) in rows]


def insert(connection: sqlite3.Connection, item: Item) -> None:
    """Write the item in place of the one with its key."""
    attributes = {name: each for name, each in without_none(item).items() if name not in (PARTITION, SORT, EXPIRY)}
    text = json.dumps(attributes, default=_from_bytes, allow_nan=False)
    row = (item[PARTITION], item[SORT], item.get(EXPIRY), text)
    connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", row)


def _get(connection: sqlite3.Connection, key: Mapping[str, Any], now: float) -> Item | None:
    row = connection.execute(f"{_LIVE} AND pk = ? AND sk = ?", (now, key[PARTITION], key[SORT])).fetchone()
    return None if row is None else _item(row)


def _write(connection: sqlite3.Connection, writes: Sequence[PutItem | DeleteItem], now: float) -> Sequence[Item | None]:
    """Make all writes and return the items before them, or raise ConditionFailed."""
    old = [_get(connection, key_of(write), now) for write in writes]
    check_conditions(writes, old)
    for write in writes:
        if isinstance(write, PutItem):
            insert(connection, write.item)
        else:
            delete = "DELETE FROM items WHERE pk = ? AND sk = ?"
            connection.execute(delete, (write.key[PARTITION], write.key[SORT]))
    return old


def _forget(connection: sqlite3.Connection, now: float, count_max: int) -> None:
    """Delete some expired items."""
    expired = "SELECT rowid FROM items WHERE expires_at <= ? LIMIT ?"
    connection.execute(f"DELETE FROM items WHERE rowid IN ({expired})", (now, count_max))  # noqa: S608


def _item(row: tuple[str, str, int | None, str]) -> Item:
    partition, sort, expires_at, attributes = row
    item = {PARTITION: partition, SORT: sort, **json.loads(attributes, object_hook=_to_bytes)}
    return item if expires_at is None else {**item, EXPIRY: expires_at}


def _from_bytes(value: bytes) -> dict[str, str]:
    return {_BYTES: b64encode(value).decode()}


def _to_bytes(value: dict[str, Any]) -> Any:
    return b64decode(value[_BYTES]) if value.keys() == {_BYTES} else value
