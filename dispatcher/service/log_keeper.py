"""Makes the snapshots of a pool that has no gate process, before its entries expire.

The gate processes beside the workers make the snapshots. After the last worker has left, other processes may still
write entries, for example for calls that arrive and wait. These entries expire after days like all others. So a process
that runs regularly checks once an hour for entries that no snapshot contains.
"""

from __future__ import annotations

from dispatcher.ports import Clock, Ids, Log, UsageStore
from dispatcher.service.gate.replica import Replica
from dispatcher.service.snapshots import UNSAVED_S, Snapshots
from dispatcher.shard.settings import ShardSettings


class LogKeeper:
    def __init__(
        self, log: Log, projections: UsageStore, settings: ShardSettings, shard: str, clock: Clock, ids: Ids
    ) -> None:
        self._log, self._settings, self._clock, self._ids = log, settings, clock, ids
        self._snapshots = Snapshots(log, projections, shard, clock, ids)
        self._looked_at: float | None = None

    async def keep(self) -> bool:
        """Write a snapshot and its projections if one is due. Return whether it was written.

        The check is made at most once in UNSAVED_S. Raises StoreUnavailable, LogGap, LogCorrupt.
        """
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < UNSAVED_S:
            return False
        replica = await self._read_log()
        self._looked_at = now
        if not self._snapshots.is_due(replica):
            return False
        await replica.commit([await self._snapshots.write(replica)])
        return True

    async def save(self) -> None:
        """Write a snapshot and its projections now. Raises StoreUnavailable, LogGap, LogCorrupt."""
        replica = await self._read_log()
        await replica.commit([await self._snapshots.write(replica)])

    async def _read_log(self) -> Replica:
        replica = Replica(self._log, self._settings, self._clock, self._ids.new())
        await replica.catch_up()
        return replica
