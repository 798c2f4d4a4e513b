"""Read models: usage by hour, and the state of tenants. In DynamoDB rows are written one by one, a write unit each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.stores.layout import (
    DAY_HOURS,
    TENANT_ROW_KEEP_S,
    USAGE_KEEP_S,
    checked_shard,
    state_partition,
    tenant_row_key,
    usage_key,
    usage_partition,
    usage_prefix,
)
from dispatcher.stores.table import EXPIRY, IfLower, Item, ItemTable, PutItem

_IF_NEWER = IfLower("position")
"""Otherwise the stored row contains as many entries or more, and stays."""


class UsageRecords:
    """dispatcher.ports.UsageStore."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table

    async def put_usage(self, shard: str, rows: Sequence[UsageRow]) -> None:
        named, expiry = checked_shard(shard), int(self._table.clock.now() + USAGE_KEEP_S)
        puts = [PutItem(_usage_item(named, row, expiry), _IF_NEWER) for row in rows]
        await self._table.put_each(puts, synced=False)

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[str, UsageRow]]:
        bounds = ("", "") if tenant is None else (usage_prefix(tenant, first_hour), usage_prefix(tenant, last_hour + 1))
        found: list[tuple[str, UsageRow]] = []
        for day in range(first_hour // DAY_HOURS, last_hour // DAY_HOURS + 1):
            items = await self._table.range(usage_partition(day * DAY_HOURS), *bounds)
            found += [(item["shard"], _usage_row(item)) for item in items]
        chosen = (each for each in found if first_hour <= each[1].hour <= last_hour)
        return sorted(chosen, key=lambda each: (each[1].hour, each[1].tenant, each[1].app, each[0]))

    async def put_tenant_rows(self, shard: str, rows: Sequence[TenantRow]) -> None:
        named = checked_shard(shard)
        await self._table.put_each([PutItem(_state_item(named, row), _IF_NEWER) for row in rows], synced=False)

    async def tenant_rows(self, shard: str) -> Sequence[TenantRow]:
        return [_tenant_row(item) for item in await self._table.range(state_partition(shard))]


def _usage_item(shard: str, row: UsageRow, expiry: int) -> Item:
    return {**usage_key(row.tenant, row.hour, shard, row.app), **asdict(row), "shard": shard, EXPIRY: expiry}


def _usage_row(item: Mapping[str, Any]) -> UsageRow:
    return UsageRow(
        tenant=item["tenant"],
        app=item["app"],
        hour=int(item["hour"]),
        requests=int(item["requests"]),
        input_tokens=int(item["input_tokens"]),
        output_tokens=int(item["output_tokens"]),
        service=float(item["service"]),
        position=int(item["position"]),
        cached_tokens=int(item.get("cached_tokens", 0)),  # older rows have none
    )


def _state_item(shard: str, row: TenantRow) -> Item:
    fields = {**asdict(row), "clocks": list(row.clocks)}
    return {**tenant_row_key(shard, row.tenant), **fields, EXPIRY: int(row.at + TENANT_ROW_KEEP_S)}


def _tenant_row(item: Mapping[str, Any]) -> TenantRow:
    credit = item.get("credit")
    return TenantRow(
        tenant=item["tenant"],
        version=int(item["version"]),
        tier=item["tier"],
        weight=float(item["weight"]),
        rate_per_s=float(item["rate_per_s"]),
        burst=float(item["burst"]),
        waiting=int(item["waiting"]),
        running=int(item["running"]),
        reserved=float(item["reserved"]),
        spent=float(item["spent"]),
        clocks=tuple(float(clock) for clock in item["clocks"]),
        credit=None if credit is None else float(credit),
        at=float(item["at"]),
        position=int(item["position"]),
    )
