"""Patches that make moto 5.2.5 exact, and fast enough for a local stack. moto is pinned: each patch replaces its code.

1. `serve_one_at_a_time`: moto's DynamoDB loses concurrent updates in its threaded server (measured: it kept 1,193 to
   1,199 of 1,200). A lock around `DynamoHandler.call_action` makes every request atomic.
2. `undo_only_touched_items`: moto copies the whole table before each transaction, to restore it if the transaction
   fails: 25 ms at 3,000 items. The patch copies and restores only the touched items. It needs 1, as moto's way does.
3. `query_only_candidates`: moto sorts the whole table for each query (40 ms at 3,000 items) and then drops items that
   do not match. The patch passes it only the items of the queried partition, of the table or of the index.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler

_installed = threading.Event()


def install() -> None:
    """Patch moto in this process. Call it before the first request; further calls do nothing."""
    if _installed.is_set():
        return
    _installed.set()
    serve_one_at_a_time()
    undo_only_touched_items()
    query_only_candidates()


def serve_one_at_a_time() -> None:
    one_at_a_time = threading.Lock()
    original = DynamoHandler.call_action

    def call_action(self: Any) -> Any:
        with one_at_a_time:
            return original(self)

    DynamoHandler.call_action = call_action


@dataclass(frozen=True)
class _Before:
    """One item as it was before a transaction. `item` is None if it did not exist."""

    table: Any
    hash_key: Any
    range_key: Any
    item: Any

    def restore(self) -> None:
        partition = self.table.items if self.range_key is None else self.table.items[self.hash_key]
        key = self.hash_key if self.range_key is None else self.range_key
        if self.item is None:
            partition.pop(key, None)
        else:
            partition[key] = self.item


def undo_only_touched_items() -> None:
    original = DynamoDBBackend.transact_write_items

    def transact_write_items(self: Any, transact_items: Sequence[dict[str, Any]]) -> None:
        before = [_before(self, item) for item in transact_items[:100]]
        stream_lengths = {shard: len(shard.items) for shard in _stream_shards(before)}
        try:
            with _skip_table_copies():
                original(self, transact_items)
        except Exception:
            # Backwards: an item named twice (which is an error) gets its first state.
            for touched in reversed(before):
                if touched is not None:
                    touched.restore()
            for shard, length in stream_lengths.items():
                del shard.items[length:]
            raise

    DynamoDBBackend.transact_write_items = transact_write_items


def _before(backend: Any, transact_item: dict[str, Any]) -> _Before | None:
    """Copy the item of an operation; None for a malformed operation, which moto refuses before it writes."""
    operation: dict[str, Any] = next(iter(transact_item.values()), {})
    table = backend.tables.get(operation.get("TableName"))
    key = operation.get("Key", operation.get("Item", {}))
    if table is None or any(name not in key for name in table.table_key_attrs):
        return None
    hash_key, range_key = backend.get_keys_value(table, key)
    return _Before(table, hash_key, range_key, copy.deepcopy(table.get_item(hash_key, range_key)))


def _stream_shards(before: Sequence[_Before | None]) -> set[Any]:
    return {touched.table.stream_shard for touched in before if touched and touched.table.stream_shard is not None}


@contextmanager
def _skip_table_copies() -> Iterator[None]:
    """Make deepcopy(table) return the table itself, so that moto's own backup and roll-back cost nothing.

    Safe only because requests are served one at a time: no other request copies a table meanwhile.
    """
    Table.__deepcopy__ = lambda table, _memo: table
    try:
        yield
    finally:
        del Table.__deepcopy__


def query_only_candidates() -> None:
    original = Table.query
    index_name_at = 6  # its position among the arguments after the hash key in the call by moto's backend

    def query(self: Any, hash_key: Any, *args: Any, **kwargs: Any) -> Any:
        candidates = copy.copy(self)  # shallow: the items are the table's own
        if args[index_name_at] is None:
            candidates.items = {hash_key: self.items[hash_key]} if hash_key in self.items else {}
        else:
            candidates.items = _matching(self, kwargs.get("hash_key_conditions") or ())
        return original(candidates, hash_key, *args, **kwargs)

    Table.query = query


def _matching(table: Any, conditions: Sequence[tuple[str, Any]]) -> dict[Any, Any]:
    """Return the table's items, in its own shape, that meet the conditions: moto's filter, applied before it sorts."""

    def matches(item: Any) -> bool:
        return all(name in item.attrs and item.attrs[name] == value for name, value in conditions)

    if not table.has_range_key:
        return {key: item for key, item in table.items.items() if matches(item)}
    partitions = (
        (hash_key, {range_key: item for range_key, item in partition.items() if matches(item)})
        for hash_key, partition in table.items.items()
    )
    return {hash_key: partition for hash_key, partition in partitions if partition}
