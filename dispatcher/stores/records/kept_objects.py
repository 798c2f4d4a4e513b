"""What a tenant keeps: responses, files and batches.

A kept response has an item for each part, and the bytes of each hour have an item. An item of DynamoDB may have 400 KB,
so a long content has several parts. The first part is written last and names the write, so that a reader never puts
parts of two writes together. The bytes of a tenant are counted by the hour in which they expire: a response counts
until the end of this hour, and the items of all hours are one query. The functions may not delete items, so a deleted
response loses its content and expires at once.

A file and a batch have an item each, and each batch that is not retired has one more. The item of an open batch is
written before the batch itself, so that no batch is ever without it. A deleted record of these, too, loses its content
and expires at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil

from dispatcher.model.batches import Batch, FileRecord, batch_record, to_batch
from dispatcher.model.kept import KeptResponse
from dispatcher.model.usage import HOUR_S
from dispatcher.stores.layout import (
    TEXT_BYTES_MAX,
    batch_key,
    batch_partition,
    file_key,
    file_partition,
    open_batch_key,
    open_batches_partition,
    response_bytes_key,
    response_bytes_partition,
    response_key,
    response_partition,
)
from dispatcher.stores.table import EXPIRY, PARTITION, SORT, ConditionFailed, DeleteItem, IfPresent, Item, ItemTable


class ResponseRecords:
    """dispatcher.model.kept.ResponseStore."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        size = len(response.content)
        hours = await self._table.range(response_bytes_partition(response.tenant))
        if sum(int(hour["bytes"]) for hour in hours) + size > bytes_max:
            return False
        await self._count(response, size)
        first, *others = response_items(response, await self._table.nonce())
        for item in others:
            await self._table.put(item, synced=False)
        old = await self._table.put(first)
        if old is not None and "bytes" in old:  # give the bytes of the replaced response back
            replaced = KeptResponse(response.tenant, response.id, b"", float(old["expires_at"]))
            await self._count(replaced, -int(old["bytes"]))
        return True

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        parts = await self._table.range(response_partition(tenant, response_id))
        return _join_parts(tenant, response_id, parts)

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        parts = await self._table.range(response_partition(tenant, response_id))
        found, expired = _join_parts(tenant, response_id, parts), {EXPIRY: int(self._table.clock.now())}
        for number in range(len(parts)):
            key = response_key(tenant, response_id, number)
            await self._table.update(key, expired, removed=("content", "parts", "bytes"))
        if found is not None:
            await self._count(found, -len(found.content))
        return found is not None

    async def erase_responses(self, tenant: str) -> None:
        """Delete all of the tenant's responses, where the table can list partitions."""
        counted, own = response_bytes_partition(tenant), response_partition(tenant, "")
        keys = [
            {PARTITION: partition, SORT: item[SORT]}
            for partition in await self._table.partitions(counted)
            if partition == counted or partition.startswith(own)
            for item in await self._table.range(partition)
        ]
        if keys:
            await self._table.transact([DeleteItem(key) for key in keys], await self._table.nonce())

    async def _count(self, response: KeptResponse, size: int) -> None:
        hour = _expiry_hour(response)
        key = response_bytes_key(response.tenant, hour)
        await self._table.update(key, {EXPIRY: hour * HOUR_S}, added={"bytes": size}, synced=False)


def response_items(response: KeptResponse, nonce: str) -> list[Item]:
    content = response.content
    starts = range(0, len(content), TEXT_BYTES_MAX) if content else range(1)
    written = {"nonce": nonce, EXPIRY: ceil(response.expires_at)}
    items: list[Item] = [
        {
            **response_key(response.tenant, response.id, number),
            **written,
            "content": content[start : start + TEXT_BYTES_MAX],
        }
        for number, start in enumerate(starts)
    ]
    items[0] |= {"parts": len(items), "bytes": len(content), "expires_at": response.expires_at}
    return items


def _join_parts(tenant: str, response_id: str, parts: Sequence[Item]) -> KeptResponse | None:
    """Return the response of these parts, or None if its write has not ended."""
    if not parts or "parts" not in parts[0]:
        return None
    first = parts[0]
    written = [part for part in parts if part["nonce"] == first["nonce"]]
    if len(written) != first["parts"]:
        return None
    content = b"".join(bytes(part["content"]) for part in written)
    return KeptResponse(tenant, response_id, content, float(first["expires_at"]))


def _expiry_hour(response: KeptResponse) -> int:
    """Return the hour, in hours since 1970, before which the bytes of a kept response count towards its tenant's limit.

    It is the end of the hour in which the response expires. So a tenant's bytes are the sum of few hours, however many
    responses it has.
    """
    return int(response.expires_at // HOUR_S) + 1


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
