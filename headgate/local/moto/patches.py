"""What moto 5.2.5 needs to be exact, and fast enough to carry a local stack. Pinned: each patch names what it replaces.

1. `serve_one_at_a_time`: moto's DynamoDB loses concurrent updates in its threaded server (measured: 1,193 to 1,199 of
   1,200 kept). A lock around `DynamoHandler.call_action` makes every request atomic.
2. `undo_only_touched_items`: moto deep-copies the whole table before each transaction, to put the copy back when one
   fails: 25 ms at 3,000 items. Here the touched items alone are copied, and put back. Needs 1, as the original does.
3. `query_only_candidates`: moto sorts the whole table for each query (40 ms at 3,000 items), then drops what does not
   match; here it sees only the items of the partition, or of the index's partition, that is asked for.
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
    """Patch moto in this process, once. Call before the first request is served."""
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
    """One item as it was before a transaction. `item` None: it was not there."""

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
            with _tables_not_copied():
                original(self, transact_items)
        except Exception:
            # Backwards, so that an item named twice (itself an error) ends as it was first.
            for touched in reversed(before):
                if touched is not None:
                    touched.restore()
            for shard, length in stream_lengths.items():
                del shard.items[length:]
            raise

    DynamoDBBackend.transact_write_items = transact_write_items


def _before(backend: Any, transact_item: dict[str, Any]) -> _Before | None:
    """None for an operation so malformed that moto refuses it before it writes anything for it."""
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
def _tables_not_copied() -> Iterator[None]:
    """While inside, deepcopy(table) is the table itself: moto's own backup and roll-back of it become no work at all.

    Safe only because requests are served one at a time: nobody else copies a table meanwhile.
    """
    Table.__deepcopy__ = lambda table, _memo: table
    try:
        yield
    finally:
        del Table.__deepcopy__


def query_only_candidates() -> None:
    original = Table.query
    index_name_at = 6  # its place among the positional arguments after the hash key, as moto's backend passes them

    def query(self: Any, hash_key: Any, *args: Any, **kwargs: Any) -> Any:
        candidates = copy.copy(self)  # shallow: the items are the table's own
        if args[index_name_at] is None:
            candidates.items = {hash_key: self.items[hash_key]} if hash_key in self.items else {}
        else:
            candidates.items = _matching(self, kwargs.get("hash_key_conditions") or ())
        return original(candidates, hash_key, *args, **kwargs)

    Table.query = query


def _matching(table: Any, conditions: Sequence[tuple[str, Any]]) -> dict[Any, Any]:
    """The table's items, in its own shape, with the values asked for: moto's own filter, applied before it sorts."""

    def matches(item: Any) -> bool:
        return all(name in item.attrs and item.attrs[name] == value for name, value in conditions)

    if not table.has_range_key:
        return {key: item for key, item in table.items.items() if matches(item)}
    partitions = (
        (hash_key, {range_key: item for range_key, item in partition.items() if matches(item)})
        for hash_key, partition in table.items.items()
    )
    return {hash_key: partition for hash_key, partition in partitions if partition}
