"""Kept responses in DynamoDB: an item for each part of a response, and an item for the bytes of each hour.

An item may have 400 KB, so a long content has several parts. The first part is written last and names the write, so
that a reader never puts parts of two writes together. The bytes of a tenant are counted by the hour in which they
expire: a response counts until the end of this hour, and the items of all hours are one query. The functions may not
delete items, so a deleted response loses its content and expires at once.
"""

from __future__ import annotations

from math import ceil

from dispatcher.model.kept_response import KeptResponse
from dispatcher.model.usage import HOUR_S
from dispatcher.stores.dynamodb.attributes import Item, decode_item, encode, encode_item
from dispatcher.stores.dynamodb.layout import (
    EXPIRY,
    response_bytes_key,
    response_bytes_partition,
    response_key,
    response_partition,
)
from dispatcher.stores.dynamodb.reads import Reads
from dispatcher.stores.dynamodb.requests import Requests
from dispatcher.stores.limits import TEXT_BYTES_MAX, counted_until


class DynamoResponses:
    """dispatcher.model.kept_response.ResponseStore."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests, self._reads = requests, reads

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        size = len(response.content)
        hours = await self._reads.partition(response_bytes_partition(response.tenant))
        if sum(int(hour["bytes"]) for hour in hours) + size > bytes_max:
            return False
        await self._count(response, size)
        first, *others = self._items(response)
        for item in others:
            await self._requests.put(encode_item(item))
        old = await self._requests.send("put_item", Item=encode_item(first), ReturnValues="ALL_OLD")
        await self._give_back(response, decode_item(old.get("Attributes", {})))
        return True

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        parts = await self._reads.partition(response_partition(tenant, response_id))
        return _whole(tenant, response_id, parts)

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        parts = await self._reads.partition(response_partition(tenant, response_id))
        found = _whole(tenant, response_id, parts)
        for number in range(len(parts)):
            await self._requests.send(
                "update_item",
                Key=encode_item(response_key(tenant, response_id, number)),
                UpdateExpression="REMOVE #content, #parts, #bytes SET #ttl = :now",
                ExpressionAttributeNames={"#content": "content", "#parts": "parts", "#bytes": "bytes", "#ttl": EXPIRY},
                ExpressionAttributeValues={":now": encode(int(self._requests.clock.now()))},
            )
        if found is not None:
            await self._count(found, -len(found.content))
        return found is not None

    async def _give_back(self, new: KeptResponse, old: Item) -> None:
        """Subtract the bytes of a response that `new` has replaced."""
        if "bytes" in old:
            replaced = KeptResponse(new.tenant, new.id, b"", float(old["expires_at"]))
            await self._count(replaced, -int(old["bytes"]))

    async def _count(self, response: KeptResponse, size: int) -> None:
        hour = counted_until(response)
        await self._requests.send(
            "update_item",
            Key=encode_item(response_bytes_key(response.tenant, hour)),
            UpdateExpression="ADD #bytes :size SET #ttl = :end",
            ExpressionAttributeNames={"#bytes": "bytes", "#ttl": EXPIRY},
            ExpressionAttributeValues={":size": encode(size), ":end": encode(hour * HOUR_S)},
        )

    def _items(self, response: KeptResponse) -> list[Item]:
        content, nonce = response.content, self._requests.nonce()
        starts = range(0, len(content), TEXT_BYTES_MAX) if content else range(1)
        written = {"nonce": nonce, EXPIRY: ceil(response.expires_at)}
        items = [
            {
                **response_key(response.tenant, response.id, number),
                **written,
                "content": content[start : start + TEXT_BYTES_MAX],
            }
            for number, start in enumerate(starts)
        ]
        items[0] |= {"parts": len(items), "bytes": len(content), "expires_at": response.expires_at}
        return items


def _whole(tenant: str, response_id: str, parts: list[Item]) -> KeptResponse | None:
    """Return the response of these parts, or None if its write has not ended."""
    if not parts or "parts" not in parts[0]:
        return None
    first = parts[0]
    written = [part for part in parts if part["nonce"] == first["nonce"]]
    if len(written) != first["parts"]:
        return None
    content = b"".join(bytes(part["content"]) for part in written)
    return KeptResponse(tenant, response_id, content, float(first["expires_at"]))
