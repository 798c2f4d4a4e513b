"""Read models in DynamoDB: usage by hour, and the state of tenants. Rows are written one by one, a write unit each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.stores.dynamodb.attributes import Item, encode, encode_item
from dispatcher.stores.dynamodb.layout import (
    DAY_HOURS,
    EXPIRY,
    state_partition,
    tenant_row_key,
    usage_key,
    usage_partition,
    usage_prefix,
)
from dispatcher.stores.dynamodb.reads import Reads
from dispatcher.stores.dynamodb.requests import ConditionFailed, Requests
from dispatcher.stores.limits import TENANT_ROW_KEEP_S, USAGE_KEEP_S, checked_shard
from dispatcher.stores.records import tenant_row_record, to_tenant_row, to_usage, usage_record

_OLDER = "attribute_not_exists(pk) OR #position < :position"


class DynamoUsage:
    """dispatcher.ports.UsageStore."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests, self._reads = requests, reads

    async def put_usage(self, shard: str, rows: Sequence[UsageRow]) -> None:
        named, expiry = checked_shard(shard), int(self._requests.clock.now() + USAGE_KEEP_S)
        await self._put_all([{**_usage_item(named, row), EXPIRY: expiry} for row in rows])

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[str, UsageRow]]:
        found: list[tuple[str, UsageRow]] = []
        for day in range(first_hour // DAY_HOURS, last_hour // DAY_HOURS + 1):
            items = await self._day(tenant, day * DAY_HOURS, first_hour, last_hour)
            found += [(item["shard"], to_usage(item)) for item in items]
        chosen = (each for each in found if first_hour <= each[1].hour <= last_hour)
        return sorted(chosen, key=lambda each: (each[1].hour, each[1].tenant, each[1].app, each[0]))

    async def _day(self, tenant: str | None, day_hour: int, first_hour: int, last_hour: int) -> list[Item]:
        partition = usage_partition(day_hour)
        if tenant is None:
            return await self._reads.partition(partition)
        bounds = {":low": usage_prefix(tenant, first_hour), ":high": usage_prefix(tenant, last_hour + 1)}
        items = await self._reads.query(partition, "#sk BETWEEN :low AND :high", bounds)
        return [item for item in items if not self._reads.is_expired(item)]

    async def put_tenant_rows(self, shard: str, rows: Sequence[TenantRow]) -> None:
        named = checked_shard(shard)
        await self._put_all([{**tenant_row_key(named, row.tenant), **_row_item(row)} for row in rows])

    async def tenant_rows(self, shard: str) -> Sequence[TenantRow]:
        return [to_tenant_row(item) for item in await self._reads.partition(state_partition(shard))]

    async def _put_all(self, items: Sequence[Item]) -> None:
        for item in items:
            await self._put_newer(item)

    async def _put_newer(self, item: Mapping[str, Any]) -> None:
        names, values = {"#position": "position"}, {":position": encode(item["position"])}
        more = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
        try:
            await self._requests.put(encode_item(item), _OLDER, **more)
        except ConditionFailed:
            return  # the stored row contains as many entries or more, and stays


def _usage_item(shard: str, row: UsageRow) -> Item:
    return {**usage_key(row.tenant, row.hour, shard, row.app), **usage_record(row), "shard": shard}


def _row_item(row: TenantRow) -> Item:
    return {**tenant_row_record(row), EXPIRY: int(row.at + TENANT_ROW_KEEP_S)}
