"""Kept responses: an item for each part of a response, and an item for the bytes of each hour.

An item of DynamoDB may have 400 KB, so a long content has several parts. The first part is written last and names the
write, so that a reader never puts parts of two writes together. The bytes of a tenant are counted by the hour in which
they expire: a response counts until the end of this hour, and the items of all hours are one query. The functions may
not delete items, so a deleted response loses its content and expires at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from dispatcher.model.kept import KeptResponse
from dispatcher.model.usage import HOUR_S
from dispatcher.stores.layout import response_bytes_key, response_bytes_partition, response_key, response_partition
from dispatcher.stores.limits import TEXT_BYTES_MAX
from dispatcher.stores.table import EXPIRY, PARTITION, SORT, DeleteItem, Item, ItemTable


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
