"""The table in DynamoDB. Each method is one request, but `put_each` sends one for each item, and a
range of more than 1 MB takes several. Reads are strongly consistent.

An item that has expired and is not deleted yet counts as none, by the same time in a condition and in the item that its
failure returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.ports import Clock
from dispatcher.stores.dynamodb.requests import Reads, Requests, decode_item, encode_item
from dispatcher.stores.table import (
    EXPIRY,
    PARTITION,
    Condition,
    ConditionFailed,
    DeleteItem,
    IfAbsent,
    IfLower,
    IfPresent,
    Item,
    Key,
    PutItem,
    is_live,
)


class DynamoTable:
    """dispatcher.stores.table.ItemTable."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests, self._reads = requests, reads

    @property
    def clock(self) -> Clock:
        return self._requests.clock

    async def nonce(self) -> str:
        return self._requests.nonce()

    async def get(self, key: Key) -> Item | None:
        return await self._reads.item(key)

    async def range(self, partition: str, low: str = "", high: str = "") -> Sequence[Item]:
        condition, values = "", {}
        if low or high:
            condition = "#sk BETWEEN :from AND :to" if high else "#sk >= :from"
            values = {":from": low, ":to": high or None}
        items = await self._reads.query(partition, condition, values)
        return [item for item in items if not self._reads.is_expired(item)]

    async def put(self, item: Item, condition: Condition = None, *, synced: bool = True) -> Item | None:
        now = self.clock.now()
        request = {"Item": encode_item(item), "ReturnValues": "ALL_OLD", **_conditional(condition, item, now)}
        return _live(decode_item((await self._send("put_item", request, now)).get("Attributes", {})), now)

    async def put_each(self, puts: Sequence[PutItem], *, synced: bool = True) -> None:
        for each in puts:
            now = self.clock.now()
            request = {"Item": encode_item(each.item), **_conditional(each.condition, each.item, now)}
            try:
                await self._send("put_item", request, now)
            except ConditionFailed:
                continue

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
        now, sums = self.clock.now(), added or {}
        # REMOVE first: moto applies the clauses in order, and an item with the old and the new text may be too large
        parts = {
            "REMOVE": [f"#{name}" for name in removed],
            "ADD": [f"#{name} :{name}" for name in sums],
            "SET": [f"#{name} = :{name}" for name in values],
        }
        names = {f"#{name}": name for name in (*removed, *sums, *values)}
        request = _merge(
            {
                "Key": encode_item(key),
                "UpdateExpression": " ".join(f"{verb} {', '.join(each)}" for verb, each in parts.items() if each),
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": encode_item(
                    {f":{name}": each for name, each in {**sums, **values}.items()}
                ),
                **({"ReturnValues": "ALL_NEW"} if returned else {}),
            },
            _conditional(condition, values, now),
        )
        reply = await self._send("update_item", request, now)
        return decode_item(reply["Attributes"]) if returned else None

    async def transact(self, writes: Sequence[PutItem | DeleteItem], nonce: str) -> None:
        now = self.clock.now()
        try:
            await self._requests.transact([self._statement(write, now) for write in writes], nonce)
        except ConditionFailed as refused:
            raise ConditionFailed(tuple(_live(old, now) for old in refused.old)) from None

    async def partitions(self, prefix: str) -> Sequence[str]:
        return ()

    async def _send(self, operation: str, request: Mapping[str, Any], now: float) -> dict[str, Any]:
        try:
            return await self._requests.send(operation, **request)
        except ConditionFailed as refused:
            raise ConditionFailed((_live(refused.old[0], now),)) from None

    def _statement(self, write: PutItem | DeleteItem, now: float) -> dict[str, Any]:
        table = {"TableName": self._requests.table}
        if isinstance(write, DeleteItem):
            return {"Delete": {**table, "Key": encode_item(write.key)}}
        return {"Put": {**table, "Item": encode_item(write.item), **_conditional(write.condition, write.item, now)}}


def _live(item: Item | None, now: float) -> Item | None:
    return item if item and is_live(item, now) else None


def _conditional(condition: Condition, new: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the arguments that make a write conditional. They return the stored item if the condition fails."""
    names, values = {"#ttl": EXPIRY}, {":now": now}
    match condition:
        case None:
            return {}
        case IfAbsent():
            text = f"attribute_not_exists({PARTITION}) OR #ttl <= :now"
        case IfLower(attribute):
            text = f"attribute_not_exists({PARTITION}) OR #{attribute} < :{attribute} OR #ttl <= :now"
            names |= {f"#{attribute}": attribute}
            values |= {f":{attribute}": new[attribute]}
        case IfPresent(expected, lacks):
            clauses = [f"attribute_exists({PARTITION})", "(attribute_not_exists(#ttl) OR #ttl > :now)"]
            clauses += [f"#{name} = :old_{name}" for name in expected]
            clauses += [f"attribute_not_exists(#{name})" for name in lacks]
            text = " AND ".join(clauses)
            names |= {f"#{name}": name for name in (*expected, *lacks)}
            values |= {f":old_{name}": value for name, value in expected.items()}
    return {
        "ConditionExpression": text,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": encode_item(values),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _merge(request: dict[str, Any], condition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with the condition. Both may have names and values of attributes."""
    both = request.keys() & condition.keys()
    return {**request, **condition, **{name: {**request[name], **condition[name]} for name in both}}
