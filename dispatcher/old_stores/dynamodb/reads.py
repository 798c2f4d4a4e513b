"""Reads of the table: strongly consistent, except through the indexes, which cannot be; and filtered by expiry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from dispatcher.model.errors import StoreUnavailable
from dispatcher.old_stores.dynamodb.attributes import Item, decode_item, encode, encode_item
from dispatcher.old_stores.dynamodb.items import is_expired
from dispatcher.old_stores.dynamodb.layout import PARTITION, SORT, Key
from dispatcher.old_stores.dynamodb.requests import Requests

BATCH_MAX = 100
"""Most keys of one BatchGetItem."""
ROUNDS_MAX = 8
"""Most further requests for keys that a throttled request left unprocessed."""
ROUND_PAUSE_S = 0.05


class Reads:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def item(self, key: Key) -> Item | None:
        table = self._requests.table
        answer = await self._requests.read("get_item", TableName=table, Key=encode_item(key), ConsistentRead=True)
        item = decode_item(answer.get("Item", {}))
        return item if item and not is_expired(item, self._requests.clock.now()) else None

    async def items(self, keys: Sequence[Key]) -> dict[tuple[str, str], Item]:
        """Those that exist, by (pk, sk): a request per 100 keys."""
        found: dict[tuple[str, str], Item] = {}
        for start in range(0, len(keys), BATCH_MAX):
            for item in await self._batch([encode_item(key) for key in keys[start : start + BATCH_MAX]]):
                found[item[PARTITION], item[SORT]] = item
        now = self._requests.clock.now()
        return {key: item for key, item in found.items() if not is_expired(item, now)}

    async def _batch(self, keys: list[dict[str, Any]]) -> list[Item]:
        table, found = self._requests.table, list[Item]()
        for number in range(ROUNDS_MAX):
            if number:
                await self._requests.clock.sleep(ROUND_PAUSE_S * 2**number * self._requests.pick(1000) / 1000)
            request = {table: {"Keys": keys, "ConsistentRead": True}}
            answer = await self._requests.read("batch_get_item", RequestItems=request)
            found += map(decode_item, answer.get("Responses", {}).get(table, ()))
            keys = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
            if not keys:
                return found
        raise StoreUnavailable()

    async def partition(self, partition: str, sort_prefix: str = "", limit: int | None = None) -> list[Item]:
        """Items of one partition in order of their sort key; the first `limit` of them."""
        condition, values = "#pk = :pk", {":pk": encode(partition)}
        names = {"#pk": PARTITION}
        if sort_prefix:
            condition, values, names = (
                f"{condition} AND begins_with(#sk, :prefix)",
                {**values, ":prefix": encode(sort_prefix)},
                {**names, "#sk": SORT},
            )
        found: list[Item] = []
        pages = self.query(condition, names, values, limit=limit, ConsistentRead=True)
        async for page in pages:
            found += page
            if limit is not None and len(found) >= limit:
                break
        now = self._requests.clock.now()
        return [item for item in found[:limit] if not is_expired(item, now)]

    async def query(
        self, condition: str, names: dict[str, str], values: dict[str, Any], limit: int | None = None, **more: Any
    ) -> AsyncIterator[list[Item]]:
        """Page by page, `limit` items a page at most; a request each."""
        request: dict[str, Any] = {
            "TableName": self._requests.table,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            **({"Limit": limit} if limit is not None else {}),
            **more,
        }
        while True:
            answer = await self._requests.read("query", **request)
            yield [decode_item(item) for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
