"""Writes snapshots and projections (rule 12). One follower does it, or the leader if it has no followers.

A snapshot is due when the log has grown enough since the last snapshot, but at most once a minute. It is also due after
some hours, because entries and snapshots expire (ports.Log.save_snapshot). After a snapshot, the rows that changed are
projected (projection.py). Then the log is cut below the snapshot before this one.
"""

from __future__ import annotations

from dispatcher.model.commands import Saved
from dispatcher.ports import Clock, Ids, Log, UsageStore
from dispatcher.service.follower import Offload, at_once
from dispatcher.service.projection import Projection
from dispatcher.service.replica import Replica
from dispatcher.shard.snapshot import dump

BYTES = 1_000_000
ENTRIES = 2_000
INTERVAL_S = 60.0
UNSAVED_S = 3600.0
"""A snapshot is due if the last one is older than this and there are newer entries."""
IDLE_S = 12 * 3600.0
"""A process makes a snapshot at least this often, even of a log that does not grow."""


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
