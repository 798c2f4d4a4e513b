"""Records of files and batches: an item for each, and an item for each batch that is not retired.

The item of an open batch is written before the batch itself, so that no batch is ever without it. The functions may
not delete items, so a deleted record loses its content and expires at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil

from dispatcher.model.batches import Batch, FileRecord, batch_record, to_batch
from dispatcher.stores.layout import (
    batch_key,
    batch_partition,
    file_key,
    file_partition,
    open_batch_key,
    open_batches_partition,
)
from dispatcher.stores.table import EXPIRY, SORT, ConditionFailed, IfPresent, Item, ItemTable


class BatchRecords:
    """dispatcher.model.batches.FileRecords and dispatcher.model.batches.BatchStore."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table

    async def put_file(self, record: FileRecord) -> None:
        await self._table.put(file_item(record))

    async def file(self, tenant: str, file_id: str) -> FileRecord | None:
        item = await self._table.get(file_key(tenant, file_id)) if file_id else None
        return None if item is None else _file(item)

    async def files(self, tenant: str) -> Sequence[FileRecord]:
        return [_file(item) for item in reversed(await self._table.range(file_partition(tenant)))]

    async def delete_file(self, tenant: str, file_id: str) -> bool:
        if await self.file(tenant, file_id) is None:
            return False
        await self._table.put({**file_key(tenant, file_id), EXPIRY: self._present()})
        return True

    async def create_batch(self, batch: Batch) -> None:
        await self._table.put(open_item(batch, ceil(batch.forgotten_at)))
        await self._table.put(batch_item(batch))

    async def batch(self, tenant: str, batch_id: str) -> Batch | None:
        item = await self._table.get(batch_key(tenant, batch_id)) if batch_id else None
        return None if item is None else _batch(item)

    async def batches(self, tenant: str) -> Sequence[Batch]:
        return [_batch(item) for item in reversed(await self._table.range(batch_partition(tenant)))]

    async def replace_batch(self, batch: Batch, expected_version: int) -> bool:
        try:
            await self._table.put(batch_item(batch), IfPresent({"version": expected_version}))
        except ConditionFailed as refused:
            (old,) = refused.old
            return old is not None and _batch(old) == batch  # an earlier try was applied
        return True

    async def open_batches(self, pool: str) -> Sequence[tuple[str, str]]:
        return [(item["tenant"], item[SORT]) for item in await self._table.range(open_batches_partition(pool))]

    async def retire_batch(self, batch: Batch) -> None:
        await self._table.put(open_item(batch, self._present()))

    async def erase_batches(self, tenant: str) -> None:
        """Delete the records of a tenant's files and batches, each by an expired item, as `delete_file` does."""
        for record in await self.files(tenant):
            await self.delete_file(tenant, record.id)
        for batch in await self.batches(tenant):
            await self._table.put({**batch_key(tenant, batch.id), EXPIRY: self._present()})
            await self.retire_batch(batch)

    def _present(self) -> int:
        return int(self._table.clock.now())


def file_item(record: FileRecord) -> Item:
    content = {"record": json.dumps(asdict(record)), EXPIRY: ceil(record.expires_at)}
    return {**file_key(record.tenant, record.id), **content}


def open_item(batch: Batch, expiry: int) -> Item:
    return {**open_batch_key(batch.pool, batch.id), "tenant": batch.tenant, EXPIRY: expiry}


def batch_item(batch: Batch) -> Item:
    content = {"version": batch.version, "record": json.dumps(batch_record(batch)), EXPIRY: ceil(batch.forgotten_at)}
    return {**batch_key(batch.tenant, batch.id), **content}


def _batch(item: Item) -> Batch:
    return to_batch(json.loads(item["record"]))


def _file(item: Item) -> FileRecord:
    return FileRecord(**json.loads(item["record"]))
