"""What a disk, an expiry or a crash does to a store, done on purpose. Each backend has its own way of doing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dispatcher.stores.layout import (
    MANIFEST_PREFIX,
    PART_PREFIX,
    log_partition,
    position_text,
    snapshot_partition,
    stripe_partition,
)
from dispatcher.stores.table import PARTITION, SORT
from tests.support.world.memory_store import MemoryStore


class Damage(Protocol):
    def expire(self, shard: str, positions: Sequence[int]) -> None:
        """Delete entries."""
        ...

    def tear(self, shard: str, position: int) -> None:
        """Delete the end of the snapshot of a position."""
        ...

    def flip(self, shard: str, position: int) -> None:
        """Change a byte of the snapshot of a position."""
        ...

    def unfinish(self, shard: str, position: int) -> None:
        """Leave the snapshot of a position as if its writer had died before the end."""
        ...


class MemoryDamage:
    def __init__(self, store: MemoryStore) -> None:
        self._logs = store.data.logs

    def expire(self, shard: str, positions: Sequence[int]) -> None:
        self._logs[shard].expire(positions)

    def tear(self, shard: str, position: int) -> None:
        self._logs[shard].tear_snapshot(position)

    def flip(self, shard: str, position: int) -> None:
        self._logs[shard].damage_snapshot(position)

    def unfinish(self, shard: str, position: int) -> None:
        self._logs[shard].unfinish_snapshot(position)


class SqliteDamage:
    """A writer that dies leaves nothing of its snapshot: it is one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def expire(self, shard: str, positions: Sequence[int]) -> None:
        for position in positions:
            self._run("DELETE FROM log WHERE shard = ? AND position = ?", shard, position)

    def tear(self, shard: str, position: int) -> None:
        self._run(
            "UPDATE snapshots SET state = substr(state, 1, length(state) - 1) WHERE shard = ? AND position = ?",
            shard,
            position,
        )

    def flip(self, shard: str, position: int) -> None:
        self._run(
            "UPDATE snapshots SET state = CAST(X'00' || substr(state, 2) AS BLOB) WHERE shard = ? AND position = ?",
            shard,
            position,
        )

    def unfinish(self, shard: str, position: int) -> None:
        self._run("DELETE FROM snapshots WHERE shard = ? AND position = ?", shard, position)

    def _run(self, statement: str, *values: object) -> None:
        with sqlite3.connect(self._path) as connection:
            assert connection.execute(statement, values).rowcount
        connection.close()


class TableDamage:
    def __init__(self, client: Any, table: str, stripes: int = 1) -> None:
        self._client, self._table, self._stripes = client, table, stripes

    def expire(self, shard: str, positions: Sequence[int]) -> None:
        for position in positions:
            striped = stripe_partition(shard, position % self._stripes)
            partition = log_partition(shard) if self._stripes == 1 else striped
            self._delete({PARTITION: {"S": partition}, SORT: {"S": position_text(position)}})

    def tear(self, shard: str, position: int) -> None:
        self._delete(self._keys(shard, PART_PREFIX, position)[-1])

    def flip(self, shard: str, position: int) -> None:
        self._client.update_item(
            TableName=self._table,
            Key=self._keys(shard, PART_PREFIX, position)[0],
            UpdateExpression="SET part = :part",
            ExpressionAttributeValues={":part": {"B": b"\0"}},
        )

    def unfinish(self, shard: str, position: int) -> None:
        for key in self._keys(shard, MANIFEST_PREFIX, position):
            self._delete(key)

    def _keys(self, shard: str, prefix: str, position: int) -> list[dict[str, Any]]:
        partitions = [snapshot_partition(shard, is_striped=each) for each in (False, True)]
        found = [
            item
            for partition in partitions
            for item in self._client.query(
                TableName=self._table,
                KeyConditionExpression="pk = :pk AND begins_with(sk, :prefix)",
                ExpressionAttributeValues={
                    ":pk": {"S": partition},
                    ":prefix": {"S": prefix + position_text(position)},
                },
            )["Items"]
        ]
        assert found
        return [{name: item[name] for name in (PARTITION, SORT)} for item in found]

    def _delete(self, key: dict[str, Any]) -> None:
        self._client.delete_item(TableName=self._table, Key=key)
