"""Writes a shard's read models to the store (rule 12): only changed rows, at most 100 write units a second.

A row of usage is exact: the shard keeps it until the log says that it was projected (facts.UsageSaved). A tenant's row
shows one moment. Its credit follows from its clocks and the time, so a row is not written for a change of the credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.ports import Clock, UsageStore

ROWS_PER_S = 50
"""Rows that are written in a second: two write units each at most."""
ROWS_MAX = 1_250
"""Most rows of each kind that are written after a snapshot, so that the next snapshot is not late. The others follow
after the next one."""


class Projection:
    """Writes the rows of one shard. `shard`: the log's name."""

    def __init__(self, store: UsageStore, shard: str, clock: Clock) -> None:
        self._store, self._shard, self._clock = store, shard, clock
        self._written: dict[str, int] = {}
        """What this process last wrote of each tenant in the shard, as a hash; the oldest write first."""

    async def put_usage(self, rows: Sequence[tuple[int, UsageRow]], position: int) -> int:
        """Write totals, each after the position of its last change, by position, as of `position`.

        Return the position since which a total must have changed that is not projected now. Raises StoreUnavailable.
        """
        for start in range(0, min(len(rows), ROWS_MAX), ROWS_PER_S):
            batch = [row for _, row in rows[start : min(start + ROWS_PER_S, ROWS_MAX)]]
            await self._store.put_usage(self._shard, batch)
            await self._clock.sleep(1.0)
        return rows[ROWS_MAX][0] if len(rows) > ROWS_MAX else position

    async def put_tenants(self, rows: Sequence[TenantRow]) -> None:
        """Write the rows that changed since this process last wrote them. Raises StoreUnavailable."""
        changed = self._changed(rows)
        for start in range(0, len(changed), ROWS_PER_S):
            batch = changed[start : start + ROWS_PER_S]
            await self._store.put_tenant_rows(self._shard, batch)
            for row in batch:
                self._written.pop(row.tenant, None)
                self._written[row.tenant] = _content(row)
            await self._clock.sleep(1.0)

    def _changed(self, rows: Sequence[TenantRow]) -> list[TenantRow]:
        """Return the rows to write now: first those that were never written, then by the age of the last write."""
        by_tenant = {row.tenant: row for row in rows}
        self._written = {tenant: content for tenant, content in self._written.items() if tenant in by_tenant}
        new = [row for row in rows if row.tenant not in self._written]
        old = [by_tenant[tenant] for tenant, content in self._written.items() if content != _content(by_tenant[tenant])]
        return [*new, *old][:ROWS_MAX]


def _content(row: TenantRow) -> int:
    return hash(replace(row, credit=None, at=0.0, position=0))
