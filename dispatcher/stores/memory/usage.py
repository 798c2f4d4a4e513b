"""Read models in memory: usage by hour, and the state of tenants."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.stores.limits import TENANT_ROW_KEEP_S


class MemoryUsage:
    def __init__(self) -> None:
        self._rows: dict[tuple[int, str, str, str], UsageRow] = {}
        self._tenants: dict[tuple[str, str], TenantRow] = {}

    def put(self, shard: str, rows: Sequence[UsageRow]) -> None:
        for row in rows:
            named = row.hour, row.tenant, row.app, shard
            old = self._rows.get(named)
            if old is None or old.position < row.position:
                self._rows[named] = row

    def read(self, tenant: str | None, first_hour: int, last_hour: int) -> list[tuple[str, UsageRow]]:
        chosen = (named for named in self._rows if first_hour <= named[0] <= last_hour and tenant in (None, named[1]))
        return [(named[3], self._rows[named]) for named in sorted(chosen)]

    def put_tenants(self, shard: str, rows: Sequence[TenantRow]) -> None:
        for row in rows:
            old = self._tenants.get((shard, row.tenant))
            if old is None or old.position < row.position:
                self._tenants[shard, row.tenant] = row

    def tenants(self, shard: str, now: float) -> list[TenantRow]:
        rows = [self._tenants[named] for named in sorted(self._tenants) if named[0] == shard]
        return [row for row in rows if now < row.at + TENANT_ROW_KEEP_S]
