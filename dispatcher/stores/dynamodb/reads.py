"""Reads the table with strong consistency. Expired items are left out: DynamoDB deletes them up to days late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatcher.stores.dynamodb.attributes import decode_item, encode, encode_item
from dispatcher.stores.dynamodb.requests import Requests
from dispatcher.stores.table import PARTITION, SORT, Item, Key, is_live


class Reads:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def item(self, key: Key) -> Item | None:
        reply = await self._requests.send("get_item", Key=encode_item(key), ConsistentRead=True)
        item = decode_item(reply.get("Item", {}))
        return item if item and not self.is_expired(item) else None

    async def partition(self, partition: str, sort_prefix: str = "") -> list[Item]:
        """Return the items of a partition whose sort keys begin with the prefix, in order of the sort keys."""
        if not sort_prefix:
            found = await self.query(partition)
        else:
            found = await self.query(partition, "begins_with(#sk, :prefix)", {":prefix": sort_prefix})
        return [item for item in found if not self.is_expired(item)]

    async def query(
        self,
        partition: str,
        condition: str = "",
        values: Mapping[str, Any] | None = None,
        limit: int | None = None,
        **more: Any,
    ) -> list[Item]:
        """Return the items that a condition on `#sk` selects, at most `limit`, also expired ones.

        One request returns at most 1 MB, so this may send several.
        """
        request = {**_condition(partition, condition, values or {}), "ConsistentRead": True, **more}
        found: list[Item] = []
        while limit is None or len(found) < limit:
            if limit is not None:
                request["Limit"] = limit - len(found)
            reply = await self._requests.send("query", **request)
            found += map(decode_item, reply["Items"])
            if "LastEvaluatedKey" not in reply:
                break
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]
        return found

    def is_expired(self, item: Item) -> bool:
        return not is_live(item, self._requests.clock.now())


def _condition(partition: str, condition: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {"#pk": PARTITION, **({"#sk": SORT} if condition else {})}
    return {
        "KeyConditionExpression": "#pk = :pk" + (f" AND {condition}" if condition else ""),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {":pk": encode(partition), **encode_item(values)},
    }
