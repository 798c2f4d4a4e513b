"""Writes a shard's read models to the store (rule 12): only changed rows, at most 100 write units a second.

A row of usage is exact: the shard keeps it until the log contains that it was projected (facts.UsageSaved). A tenant's
row shows the state at one moment. Its credit changes with time alone, so a change of the credit does not cause a write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.ports import Clock, UsageStore

logger = logging.getLogger("headgate.gate")

ROWS_PER_S = 50
"""The rows that are written in a second. Each takes at most two write units."""
ROWS_MAX = 1_250
"""The most rows of each kind that are written after one snapshot, so that the next snapshot is not late. The other rows
follow after that."""


class Projection:
    """Writes the rows of one shard. `shard`: its name."""

    def __init__(self, store: UsageStore, shard: str, clock: Clock) -> None:
        self._store, self._shard, self._clock = store, shard, clock
        self._written: dict[str, int] = {}
        """A hash of the row that this process last wrote, by tenant; the oldest write first."""

    async def put_usage(self, rows: Sequence[tuple[int, UsageRow]], position: int) -> int:
        """Write the totals of `rows`: (position of its last change, row), by position. They are those at `position`.

        Return the new `usage_saved`: all totals that did not change since that position are projected now.

        Raises StoreUnavailable.
        """
        if len(rows) > ROWS_MAX:
            logger.warning("usage is projected late: shard=%s rows=%d written=%d", self._shard, len(rows), ROWS_MAX)
        for start in range(0, min(len(rows), ROWS_MAX), ROWS_PER_S):
            batch = [row for _, row in rows[start : min(start + ROWS_PER_S, ROWS_MAX)]]
            await self._store.put_usage(self._shard, batch)
            await self._clock.sleep(1.0)
        return rows[ROWS_MAX][0] if len(rows) > ROWS_MAX else position

    async def put_tenants(self, rows: Sequence[TenantRow]) -> None:
        """Write the rows that changed since this process last wrote them. Raises StoreUnavailable."""
        changed = self._changed_rows(rows)
        for start in range(0, len(changed), ROWS_PER_S):
            batch = changed[start : start + ROWS_PER_S]
            await self._store.put_tenant_rows(self._shard, batch)
            for row in batch:
                self._written.pop(row.tenant, None)
                self._written[row.tenant] = _content(row)
            await self._clock.sleep(1.0)

    def _changed_rows(self, rows: Sequence[TenantRow]) -> list[TenantRow]:
        """Return the rows to write now: first those that were never written, then by the age of the last write."""
        by_tenant = {row.tenant: row for row in rows}
        self._written = {tenant: content for tenant, content in self._written.items() if tenant in by_tenant}
        new = [row for row in rows if row.tenant not in self._written]
        old = [by_tenant[tenant] for tenant, content in self._written.items() if content != _content(by_tenant[tenant])]
        return [*new, *old][:ROWS_MAX]


def _content(row: TenantRow) -> int:
    return hash(replace(row, credit=None, at=0.0, position=0))
