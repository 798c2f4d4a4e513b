"""Writes snapshots and projections (rule 12). One follower does it, or the leader if it has no followers.

A snapshot is due when the log has grown enough since the last snapshot, but at most once a minute. It is also due after
some hours, because entries and snapshots expire (ports.Log.save_snapshot). After a snapshot, the rows that changed are
projected. Then the log is cut below the snapshot before this one.

A projection writes the shard's read models to the store: only changed rows, at most 100 write units a second. A row of
usage is exact: the shard keeps it until the log contains that it was projected (facts.UsageSaved). A tenant's row shows
the state at one moment. Its credit changes with time alone, so a change of the credit does not cause a write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from dispatcher.model.commands import Saved
from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.ports import Clock, Ids, Log, UsageStore
from dispatcher.service.gate.follower import Offload, at_once
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.snapshot import dump

logger = logging.getLogger("headgate.gate")

BYTES = 1_000_000
ENTRIES = 2_000
INTERVAL_S = 60.0
UNSAVED_S = 3600.0
"""A snapshot is due if the last one is older than this and there are newer entries."""
IDLE_S = 12 * 3600.0
"""A process makes a snapshot at least this often, even of a log that does not grow."""
ROWS_PER_S = 50
"""The rows that are written in a second. Each takes at most two write units."""
ROWS_MAX = 1_250
"""The most rows of each kind that are written after one snapshot, so that the next snapshot is not late. The other rows
follow after that."""


class Snapshots:
    """Writes snapshots when they are due. `offload` runs the functions that make the bytes and the rows."""

    def __init__(
        self, log: Log, projections: UsageStore, shard: str, clock: Clock, ids: Ids, offload: Offload = at_once
    ) -> None:
        self._log, self._projection = log, Projection(projections, shard, clock)
        self._clock, self._ids, self._offload = clock, ids, offload
        self._written_at: float | None = None
        self._looked_at: float | None = None
        """The time at which this process first checked whether a snapshot is due."""
        self.written = 0
        """The number of snapshots that this process wrote."""

    def is_due(self, replica: Replica) -> bool:
        now = self._clock.monotonic()
        self._looked_at = now if self._looked_at is None else self._looked_at
        if self._written_at is not None and now - self._written_at < INTERVAL_S:
            return False
        unsaved = replica.shard.position - replica.saved_position
        is_long = replica.unsaved_bytes >= BYTES or unsaved >= ENTRIES
        is_old = unsaved > 0 and self._clock.now() - replica.saved_at >= UNSAVED_S
        since = self._looked_at if self._written_at is None else self._written_at
        return is_long or is_old or (replica.shard.position > 0 and now - since >= IDLE_S)

    async def write(self, replica: Replica) -> Saved:
        """Write a snapshot of the replica's state, then the projections, then cut the log. Raises StoreUnavailable.

        Return the command that logs which usage is projected. If it is lost, that of the next snapshot replaces it.
        """
        self._written_at, before = self._clock.monotonic(), replica.saved_position
        async with replica.held() as shard:
            position = shard.position
            state = await self._offload(dump, shard)
            usage = await self._offload(shard.unsaved_usage)
            tenants = await self._offload(shard.tenant_rows)
            unsaved, at = replica.unsaved_bytes, shard.at
        await self._log.save_snapshot(position, self._ids.new(), state)
        replica.saved_position, replica.saved_at = position, at
        replica.unsaved_bytes -= unsaved
        saved = await self._projection.put_usage(usage, position)
        await self._projection.put_tenants(tenants)
        await self._log.cut(before)
        self.written += 1
        return Saved(saved)


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
